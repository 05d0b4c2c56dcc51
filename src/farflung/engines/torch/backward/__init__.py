"""Backwards that autograd alone does not have.

``custom``   operators that carry their own backward as a program
``split``    a backward in two parts: gradients for earlier stages first, those of parameters later
"""
