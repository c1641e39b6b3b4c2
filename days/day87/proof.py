def show(operators, device):
    pass
