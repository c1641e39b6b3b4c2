"""What day 84 proves about its operators, and what it shows of wrong ones."""
from .wrong import said, wrong_versions


def show(operators, device):
    for what, by, call, has in wrong_versions(device):
        t = said(call)
        print(what,'|',by,'|',has in t,'|',t[:300].replace("\n"," "))
