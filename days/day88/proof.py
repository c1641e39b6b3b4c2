def show(operators, device):
    return None
