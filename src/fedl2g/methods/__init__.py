"""The methods: one file each, with a server half and a client half that exchange nothing but payloads."""

from fedl2g.methods.registry import Method, get_method, method_names, register_method

__all__ = ["Method", "get_method", "method_names", "register_method"]
