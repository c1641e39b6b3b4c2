"""Day 98, the wheel: a package whose library was built before, and that holds no Python in C."""

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


setup(
    name="hundred-days-day98",
    version="1.0",
    packages=["hundred_days_day98"],
    package_data={"hundred_days_day98": ["operators.so"]},
    python_requires=">=3.10",
    install_requires=["torch>=2.11"],  # the version of the stable ABI that the library is built for
    cmdclass={"bdist_wheel": Wheel},
)
