"""`spark.ml`: a service as a stage of a pipeline, saved and loaded with it.

Pipeline(stages=[indexer, ServiceTransformer(service="score", inputCols=["age", "income"], schema="score double")])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import keyword_only
from pyspark.ml import Transformer
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCols
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable

from mdp.spark.rows.job import dispatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

__all__ = ["ServiceTransformer"]


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"options is a map, not {type(value).__name__}")
    return value


class ServiceTransformer(Transformer, HasInputCols, DefaultParamsReadable["ServiceTransformer"], DefaultParamsWritable):
    """Transformer that adds the columns of a service's replies, as `dispatch` does.

    Args:
        service: name of the service.
        inputCols: columns that become the request, or of its table with `batch`; all if left out.
        schema: columns of the reply, as DDL.
        broker: endpoints, separated by commas; left out: `spark.mdp.broker` of the session that transforms.
        key: column with the idempotency key of each row.
        options: other arguments of `dispatch`, of JSON's types, such as `{"batch": 256, "on_error": "fail"}`.
    """

    service = Param(Params._dummy(), "service", "name of the service", TypeConverters.toString)
    schema = Param(Params._dummy(), "schema", "columns of the reply, as DDL", TypeConverters.toString)
    broker = Param(Params._dummy(), "broker", "endpoints, separated by commas", TypeConverters.toString)
    key = Param(Params._dummy(), "key", "column with the idempotency key", TypeConverters.toString)
    options = Param(Params._dummy(), "options", "other arguments of dispatch", _mapping)

    @keyword_only
    def __init__(
        self,
        *,
        service: str | None = None,
        inputCols: Sequence[str] | None = None,
        schema: str | None = None,
        broker: str | None = None,
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        given: dict[str, Any] = self.__dict__["_input_kwargs"]  # where keyword_only keeps the arguments
        self._set(**given)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if not self.isDefined(self.service):
            raise ValueError("ServiceTransformer needs the name of a service")
        broker = self._given(self.broker)
        return dispatch(
            dataset,
            service=self.getOrDefault(self.service),
            request=self._given(self.inputCols),
            schema=self._given(self.schema),
            broker=None if broker is None else tuple(one.strip() for one in broker.split(",")),
            key=self._given(self.key),
            **(self._given(self.options) or {}),
        )

    def _given(self, param: Param[Any]) -> Any:
        return self.getOrDefault(param) if self.isDefined(param) else None
