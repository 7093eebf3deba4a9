"""A newsletter with retries, a rate limit, progress, a group and what follows it: a program of Celery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003  # annotations of services are needed at run time
from dataclasses import dataclass
from typing import Annotated

import mdp
import mdp.testing

app = mdp.App()


class SmtpBusy(Exception):
    """The server of the mail wants to be asked again."""


class Refused(mdp.HandlerError):
    """The address is refused for good: not tried again."""

    default_code = "ADDRESS_REFUSED"


@dataclass
class Sent:
    """A mail that was sent."""

    address: str
    attempts: int


class Mail:
    """The connection to the mail server: busy at the first attempt for each address."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}

    async def deliver(self, address: str) -> int:
        """Deliver one mail; return how many attempts it took."""
        self.attempts[address] = self.attempts.get(address, 0) + 1
        if "@" not in address:
            raise Refused(f"{address} is no address")
        if self.attempts[address] == 1:
            raise SmtpBusy(address)
        return self.attempts[address]


@app.lifespan
async def connection() -> AsyncIterator[Mail]:
    """Open the connection once a process: Celery's `worker_process_init` and `worker_shutdown`."""
    yield Mail()


def mail() -> Mail:
    """Return the connection of this process."""
    found: Mail = app.state
    return found


@app.service("newsletter.send", retry=mdp.Retry(attempts=5, base_s=0.01), rate=mdp.Rate(1000, burst=100))
async def send(address: str, number: int, server: Annotated[Mail, mdp.Depends(mail)]) -> Sent:
    """Send one issue to one address; tried again while the server is busy."""
    return Sent(address, await server.deliver(address))


@app.service("newsletter.render")
async def render(request: mdp.Request) -> bytes:
    """Render an issue, and say how far it is."""
    pages = 4
    for page in range(pages):
        request.progress((page + 1) / pages, f"page {page + 1}")
        await asyncio.sleep(0)
    return b"issue " + request.body[0]


async def publish(client: mdp.Client, number: int, addresses: list[str]) -> str:
    """Render once, send to all at the same time, and sum up: what was a chain with a chord."""
    issue = await client.request("newsletter.render", b"%d" % number)
    sent = await asyncio.gather(
        *(client.call("newsletter.send", address, number, result=Sent, options={"key": f"{number} {address}"}) for address in addresses),
        return_exceptions=True,
    )
    refused = [error for error in sent if isinstance(error, mdp.HandlerError)]
    done = [one for one in sent if isinstance(one, Sent)]
    return f"{issue[0].decode()}: {len(done)} sent in {sum(one.attempts for one in done)} attempts, {len(refused)} refused"


async def main() -> None:
    """Serve and publish in one process; `mdp worker --app examples.ported.newsletter:app` serves it alone."""
    async with mdp.testing.broker(app) as local:
        print(await publish(local.client, 7, ["ada@example.org", "bob@example.org", "nobody"]))


if __name__ == "__main__":
    asyncio.run(main())
