"""Errors."""


def show_errors(operators, device):
    """x"""
