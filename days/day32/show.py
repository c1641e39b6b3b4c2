def show_trained(device):
    pass
