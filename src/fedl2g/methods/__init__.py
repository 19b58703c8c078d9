"""The methods: one file each, a server half and a client half that meet only in a payload."""

from fedl2g.methods.registry import Method, get_method, method_names, register_method

__all__ = ["Method", "get_method", "method_names", "register_method"]
