"""Tests of the shop: the functions in process, then its rules behind CURVE, then its spans."""

from __future__ import annotations

import datetime
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import core
import mdp
import mdp.testing
from examples.shop import shop
from mdp.tracing import Spans

TEA = shop.Item("tea", Decimal("2.50"), 3)
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_FILE", str(tmp_path / "shop.db"))


async def test_a_purchase_from_the_shelf_to_the_door() -> None:
    async with mdp.testing.broker(shop.app) as local:
        call = local.client.call
        await call("shop.add", TEA)
        assert await call("shop.items", result=list[shop.Item]) == [TEA]
        number = await call("shop.buy", "tea", 2, result=int)
        assert await call("shop.stock", "tea", result=int) == 1
        await call("shop.pay", number, await call("shop.price", "tea", 2, result=Decimal))
        assert await call("shop.unshipped", result=list[int]) == [number]
        await call("shop.ship", number)
        assert await call("shop.state", number, result=shop.State) is shop.State.SHIPPED
        long_ago = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
        found = [one async for one in local.client.call_stream("shop.purchases", long_ago, result=shop.Purchase)]
        assert [(one.name, one.count) for one in found] == [("tea", 2)]
        assert await call("shop.remove", "tea", result=bool)


async def test_errors_are_those_of_the_shop_and_undo_what_was_done() -> None:
    async with mdp.testing.broker(shop.app) as local:
        call = local.client.call
        await call("shop.add", TEA)
        with pytest.raises(shop.NotKnown):
            await call("shop.price", "gold", 1)
        with pytest.raises(shop.TooFew):
            await call("shop.buy", "tea", 4)
        number = await call("shop.buy", "tea", 3, result=int)
        with pytest.raises(shop.WrongState):
            await call("shop.pay", number, Decimal(1))
        await call("shop.cancel", number)
        assert await call("shop.stock", "tea", result=int) == 3
        with pytest.raises(mdp.BadArguments):
            await call("shop.buy", "tea", "many")


async def test_a_purchase_that_is_sent_twice_with_a_key_is_one() -> None:
    async with mdp.testing.broker(shop.app) as local:
        await local.client.call("shop.add", TEA)
        buy = local.client.with_options(key="cart-17").call
        assert await buy("shop.buy", "tea", 1, result=int) == await buy("shop.buy", "tea", 1, result=int)
        assert await local.client.call("shop.stock", "tea", result=int) == 2


async def test_customers_see_their_own_purchases_and_may_not_ship() -> None:
    """As in production: CURVE keys with names, `rules.toml` and `policies.toml`."""
    keys = {name: core.curve_keypair() for name in ("broker", "shop", "customer-1", "customer-2", "clerk")}
    named = {public: name for name, (public, _) in keys.items()}

    def security(name: str) -> core.Curve:
        return core.Curve(secret_key=keys[name][1], server_key=keys["broker"][0])

    serving = mdp.Broker(
        security=core.Curve(secret_key=keys["broker"][1], keys=named),
        rules=mdp.Rules(tomllib.loads((HERE / "rules.toml").read_text())),
        policies=mdp.ServicePolicies(tomllib.loads((HERE / "policies.toml").read_text())),
    )
    async with serving as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with (
            shop.app.serve(endpoint, security=security("shop")),
            mdp.Client(endpoint, security=security("clerk")) as clerk,
            mdp.Client(endpoint, security=security("customer-1")) as one,
            mdp.Client(endpoint, security=security("customer-2")) as other,
        ):
            await clerk.call("shop.add", TEA, options={"wait": True})
            number = await one.call("shop.buy", "tea", 1, result=int, options={"wait": True})
            assert await one.call("shop.state", number, result=shop.State, options={"wait": True}) is shop.State.OPEN
            with pytest.raises(shop.NotKnown):
                await other.call("shop.state", number)
            with pytest.raises(mdp.Forbidden):
                await other.call("shop.ship", number)
            await one.call("shop.pay", number, TEA.price)
            await clerk.call("shop.ship", number)


async def test_a_call_and_its_handler_are_spans_of_one_trace() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with mdp.testing.broker() as local:
        await local.add_app(shop.app, middleware=(Spans(provider),))
        local.client.middleware(Spans(provider))
        await local.client.call("shop.add", TEA)
    handled, asked = kept.get_finished_spans()
    assert (handled.name, asked.name) == ("shop.add handle", "shop.add request")
    assert handled.parent is not None
    assert asked.context is not None
    assert handled.parent.span_id == asked.context.span_id
