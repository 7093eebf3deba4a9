"""A path that documents and programs have used: the code is in `titanic.store.service`."""

from titanic.store.service import Service, ServiceOptions

__all__ = ["Service", "ServiceOptions"]
