"""Codecs that send a matrix as thin factors.

``lowrank``     PowerSGD
``apportion``   ranks of several matrices within one budget of bytes
"""
