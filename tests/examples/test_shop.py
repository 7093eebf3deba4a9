"""examples/shop: its own tests."""

from examples.shop.test_shop import (
    file,
    test_a_call_and_its_handler_are_spans_of_one_trace,
    test_a_purchase_from_the_shelf_to_the_door,
    test_a_purchase_that_is_sent_twice_with_a_key_is_one,
    test_customers_see_their_own_purchases_and_may_not_ship,
    test_errors_are_those_of_the_shop_and_undo_what_was_done,
)

__all__ = [
    "file",
    "test_a_call_and_its_handler_are_spans_of_one_trace",
    "test_a_purchase_from_the_shelf_to_the_door",
    "test_a_purchase_that_is_sent_twice_with_a_key_is_one",
    "test_customers_see_their_own_purchases_and_may_not_ship",
    "test_errors_are_those_of_the_shop_and_undo_what_was_done",
]
