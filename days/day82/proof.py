"""x"""
def show(operators, device):
    pass
