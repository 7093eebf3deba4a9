"""Certificates and authenticators under their names in ZeroMQ's Python binding: `core.auth` in place of `zmq.auth`.

`core.Authenticator` does the same for new programs, in one line, with key files that are read again when they change.
"""

from core.auth.base import CURVE_ALLOW_ANY, Authenticator
from core.auth.certificates import create_certificates, load_certificate, load_certificates

__all__ = ["CURVE_ALLOW_ANY", "Authenticator", "create_certificates", "load_certificate", "load_certificates"]
