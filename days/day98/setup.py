"""Day 98, the wheel: the package in this folder. Its library was built before, and is no module of
Python in C."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """The library calls PyTorch's stable ABI and no function of Python's, so the wheel is for any
    Python 3 and one platform: py3-none-linux_x86_64. A module in C that keeps to Python's limited
    API would be cp310-abi3, any other cp311-cp311."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


(package,) = (path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
setup(
    name=package.replace("_", "-"),
    version="1.0",
    packages=[package],
    package_data={package: ["*.so", "*.pt"]},
    python_requires=">=3.10",
    install_requires=["torch>=2.11"],  # the version of the stable ABI that the library is built for
    cmdclass={"bdist_wheel": Wheel},
)
