"""`mdp` command: broker, workers and clients.

A command's module is imported when the command is used: a broker loads no client and no worker, nor a client the broker.
"""

from __future__ import annotations

from typing import Final

import click

from core.daemon.command import Group, Lazy
from mdp.commands.settings.contexts import context_names, ctx, layer_of

# A command line for the help of each command.
EXAMPLES: Final = {
    "call": "mdp call --wait echo hello world",
    "broker": "mdp broker --bind tcp://*:5555 --http 127.0.0.1:9390",
    "worker": "mdp worker --app shop --concurrency 4",
    "services": "mdp services --broker tcp://10.0.0.1:5555",
    "workers": "mdp workers echo",
    "check": "mdp check --service echo",
    "describe": "mdp describe total",
    "stub": "mdp stub total",
    "dlq": "mdp dlq ls",
    "top": "mdp top --every 1",
    "events show": "mdp events show /var/log/majordomo --kind failed --service total",
    "events tail": "mdp events tail /var/log/majordomo --json",
    "trace": "mdp trace 00000000000000a1 /var/log/majordomo",
    "mmi": "mdp mmi service echo",
    "bench": "mdp bench --service echo --window 100",
    "ctx add": "mdp ctx add production --broker tcp://10.0.0.1:5555 --timeout 1",
    "ctx ls": "mdp ctx ls",
    "ctx use": "mdp ctx use production",
    "ctx rm": "mdp ctx rm production",
    "config check": "mdp config check /etc/majordomo/broker.toml",
    "dispatch": "mdp dispatch --service total --input orders.csv --output answers.csv",
    "demo": "mdp demo",
    "report": "mdp report /var/log/majordomo --html report.html",
}


@click.group(
    cls=Group,
    name="mdp",
    layer=layer_of,
    examples=EXAMPLES,
    lazy={
        "broker": Lazy("mdp.commands.broker_options", "broker", "Serve clients and workers of MDP/0.1, 0.2 and 0.3."),
        "worker": Lazy("mdp.commands.worker_daemon", "worker", "Answer requests to a service."),
        "call": Lazy(
            "mdp.commands.typed",
            "call",
            "Send a request of BODY frames to SERVICE and print the reply, one frame a line; '-' is standard input.",
        ),
        "mmi": Lazy(
            "mdp.commands.operator", "mmi", "Ask the broker about itself and print the code: `mdp mmi service echo` is 200 or 404."
        ),
        "bench": Lazy("mdp.commands.bench", "bench", "Measure rate, latency and loss of requests to a service."),
        "services": Lazy("mdp.commands.operator", "services", "List the services of a broker."),
        "workers": Lazy("mdp.commands.operator", "workers", "List the workers of a broker, or those of SERVICE."),
        "check": Lazy(
            "mdp.commands.operator",
            "check",
            "Print whether a broker answers and services have workers; exit code 0, 1 for no worker, 69 for no broker.",
        ),
        "describe": Lazy(
            "mdp.commands.typed",
            "describe",
            "Print signature, docstring and version of SERVICE; with --json the JSON schemas of its arguments and result too.",
        ),
        "stub": Lazy(
            "mdp.commands.typed", "stub", "Print a Python module with a function for each typed SERVICE, which type checkers check."
        ),
        "dlq": Lazy(
            "mdp.commands.operator", "dlq", "List dead letters, or show, retry or drop one by ID; all but ls need a broker with --manage."
        ),
        "top": Lazy("mdp.commands.top", "top", "Watch a broker in the terminal; Ctrl-C ends it."),
        "events": Lazy("mdp.commands.events", "events", "Read the event log of a broker (`mdp broker --events`), of all its shards."),
        "trace": Lazy(
            "mdp.commands.events", "trace", "Print the way of the request with this ID, or of a trace, from the event log in DIRECTORY."
        ),
        "config": Lazy("mdp.commands.settings.config", "config", "Configuration files."),
        "dispatch": Lazy(
            "mdp.spark.commands",
            "dispatch",
            "Send each row of a file, or each reply of a stored batch, to a service: a Spark job.",
            "spark",
        ),
        "report": Lazy(
            "mdp.spark.commands",
            "report",
            "Write a page about a broker's event log: latency, utilisation, retries, dead letters, slowest requests.",
            "spark",
        ),
        "demo": Lazy(
            "mdp.spark.commands",
            "demo",
            "Send 3,376 airports through Spark and Majordomo: a table and a map of the loneliest.",
            "spark",
        ),
    },
)
@click.option("--context", metavar="NAME", shell_complete=context_names, help="Context of this command; see mdp ctx.")
def main(context: str | None) -> None:
    """Majordomo: requests to named services, answered by any free worker."""


main.add_command(ctx)
