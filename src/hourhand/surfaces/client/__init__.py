"""The REST API as Python: the verbs of `Hourhand`, for whoever reaches a server and no database."""

from hourhand.surfaces.client.blocking import Client
from hourhand.surfaces.client.remote import AsyncClient

__all__ = ["AsyncClient", "Client"]
