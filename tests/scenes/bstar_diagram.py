"""The tables of a Binary Star pair as Mermaid diagrams, as docs/bstar.md shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar.machine.fsm import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bstar.machine.fsm import Cell, Event, State


def mermaid(table: Mapping[State, Mapping[Event, Cell]]) -> str:
    """Draw a table as a Mermaid state diagram: an arrow per cell that changes the state, claims or is fatal."""
    lines = ["stateDiagram-v2", "    [*] --> PRIMARY: configured primary", "    [*] --> BACKUP: configured backup"]
    for state, row in table.items():
        for event, cell in row.items():
            label = event.name.replace("_", " ").lower()
            if cell.fault:
                lines.append(f"    {state.name} --> [*]: {label}, fatal")
            elif cell.state is not state:
                lines.append(f"    {state.name} --> {cell.state.name}: {label}")
            elif Effect.CLAIM in cell.effects:
                lines.append(f"    {state.name} --> {state.name}: {label}, claims")
    return "\n".join(lines) + "\n"
