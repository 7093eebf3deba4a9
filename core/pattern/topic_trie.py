"""A map from topics to values that finds all topics that are prefixes of some bytes (ZMTP-68, PSB-15).

A publisher uses it once per message, so common tables answer with one or two dictionary look-ups:

    the empty topic         an attribute
    short topics            one dictionary per length, for the first `_TABLES_MAX` lengths seen: one slice and one look-up each
    all others              a radix trie, walked with a loop

Topics come from peers. Without the trie a peer with topics of a thousand different lengths would make each message of the
publisher cost a thousand look-ups; without the dictionaries ten thousand stock symbols would cost five steps in place of
one. A topic lives in exactly one store. The cost of a message is at most `_TABLES_MAX` look-ups plus one step per branching
byte of its first frame, whatever the peers do, and `covers` ends at the first topic. Nothing recurses, and a removed topic
gives all its memory back.
"""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")

_TABLES_MAX = 16
# Longer topics go to the trie: a slice of the first frame is hashed for each table, and this bounds what that costs.
_TABLE_TOPIC_OCTETS_MAX = 256


class _Node(Generic[V]):
    """Node of the trie: `label` has the bytes from the parent to here, `value` is set where a topic ends."""

    __slots__ = ("label", "value", "children")

    def __init__(self, label: bytes, value: V | None) -> None:
        self.label = label
        self.value = value
        self.children: dict[int, _Node[V]] = {}  # by the first byte of their label


class _Trie(Generic[V]):
    """Radix trie of topics of at least one byte.

    Only the root may have no value and fewer than two children.
    """

    __slots__ = ("_nodes", "_root")

    def __init__(self) -> None:
        self._root: _Node[V] = _Node(b"", None)
        self._nodes: dict[bytes, _Node[V]] = {}  # nodes with a value, by topic: nested topics would make a walk to one long

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def find(self, topic: bytes) -> _Node[V] | None:
        return self._nodes.get(topic)

    def put(self, topic: bytes, value: V) -> None:
        """Store a new topic, splitting a label where the paths diverge."""
        node, offset = self._root, 0
        while offset < len(topic):
            child = node.children.get(topic[offset])
            if child is None:
                node.children[topic[offset]] = self._nodes[topic] = _Node(topic[offset:], value)
                return
            if not topic.startswith(child.label, offset):
                shared = _shared_octets(child.label, topic[offset : offset + len(child.label)])
                upper: _Node[V] = _Node(child.label[:shared], None)
                child.label = child.label[shared:]
                upper.children[child.label[0]] = child
                node.children[topic[offset]] = child = upper
            node = child
            offset += len(child.label)
        node.value = value
        self._nodes[topic] = node

    def drop(self, topic: bytes) -> None:
        del self._nodes[topic]
        path = [self._root]
        offset = 0
        while offset < len(topic):
            child = path[-1].children[topic[offset]]
            path.append(child)
            offset += len(child.label)
        node = path.pop()
        node.value = None
        if not node.children:
            parent = path.pop()
            del parent.children[node.label[0]]
            if not path:
                return  # the parent is the root
            node = parent
        if node.value is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.label = node.label + child.label
            path[-1].children[child.label[0]] = child

    def collect(self, octets: bytes, found: list[V]) -> None:
        """Append the values of all topics that `octets` starts with, shortest first."""
        children, offset, size = self._root.children, 0, len(octets)
        while children and offset < size:
            node = children.get(octets[offset])
            if node is None or not octets.startswith(node.label, offset):
                return
            if node.value is not None:
                found.append(node.value)
            offset += len(node.label)
            children = node.children

    def covers(self, octets: bytes) -> bool:
        """Return whether `octets` starts with a topic; stops at the shortest."""
        children, offset, size = self._root.children, 0, len(octets)
        while children and offset < size:
            node = children.get(octets[offset])
            if node is None or not octets.startswith(node.label, offset):
                return False
            if node.value is not None:
                return True
            offset += len(node.label)
            children = node.children
        return False


class TopicMap(Generic[V]):
    """Values by topic; values are never None."""

    __slots__ = ("_everything", "_tables", "_table_of_length", "_trie")

    def __init__(self) -> None:
        self._everything: V | None = None  # the value of the empty topic
        self._tables: list[tuple[int, dict[bytes, V]]] = []  # (length, topics of that length)
        self._table_of_length: dict[int, dict[bytes, V]] = {}
        self._trie: _Trie[V] = _Trie()

    def prefixes(self, octets: bytes) -> list[V]:
        """Return the values of all topics that `octets` starts with, each once."""
        found = [] if self._everything is None else [self._everything]
        for length, topics in self._tables:
            value = topics.get(octets[:length])
            if value is not None:
                found.append(value)
        if self._trie:
            self._trie.collect(octets, found)
        return found

    def covers(self, octets: bytes) -> bool:
        """Return whether `octets` starts with a topic; stops at the first found."""
        if self._everything is not None:
            return True
        for length, topics in self._tables:
            if octets[:length] in topics:
                return True
        return bool(self._trie) and self._trie.covers(octets)

    def get(self, topic: bytes) -> V | None:
        if not topic:
            return self._everything
        table = self._table_of_length.get(len(topic))
        if table is not None:
            value = table.get(topic)
            if value is not None:
                return value
        node = self._trie.find(topic)
        return None if node is None else node.value

    def put(self, topic: bytes, value: V) -> None:
        if not topic:
            self._everything = value
            return
        node = self._trie.find(topic)
        if node is not None:  # stored there while the tables were full
            node.value = value
            return
        table = self._table_of_length.get(len(topic))
        if table is None and len(topic) <= _TABLE_TOPIC_OCTETS_MAX and len(self._tables) < _TABLES_MAX:
            table = self._table_of_length[len(topic)] = {}
            self._tables.append((len(topic), table))
        if table is None:
            self._trie.put(topic, value)
        else:
            table[topic] = value

    def drop(self, topic: bytes) -> None:
        length = len(topic)
        table = self._table_of_length.get(length)
        if not topic:
            self._everything = None
        elif table is not None and table.pop(topic, None) is not None:
            if not table:
                del self._table_of_length[length]
                self._tables.remove((length, table))
        elif self._trie.find(topic) is not None:
            self._trie.drop(topic)


def _shared_octets(one: bytes, other: bytes) -> int:
    """Return the number of leading bytes that two strings share, without a step per byte: topics may be long."""
    size = min(len(one), len(other))
    difference = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return size - (difference.bit_length() + 7) // 8
