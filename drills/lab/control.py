"""The supervisor's HTTP control API: who is there, what changed, what was notified; delete, own, touch, down."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from drills.clock import utc
from drills.lab.replicas import Replica, WrongUidError
from drills.model import Json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Feed:
    """Numbered events, oldest first, each with its time."""

    def __init__(self) -> None:
        self._events: list[Json] = []

    def add(self, event: Json) -> None:
        """Append an event; it gets the next number and the time of now."""
        stamp = {"n": len(self._events) + 1, "mono": time.monotonic(), "time": utc(time.time())}
        self._events.append({**stamp, **event})

    def since(self, n: int) -> list[Json]:
        """Return the events after number `n`."""
        return self._events[max(n, 0) :]


class Supervised(Protocol):
    """What the control API needs of the supervisor."""

    replicas: dict[str, Replica]
    events: Feed
    notifications: Feed

    def processes(self) -> list[Json]:
        """Return [{name, pid, start}] of everything that is no replica."""

    def delete(self, name: str, uid: str, grace_s: float) -> None:
        """Begin to delete that incarnation of a replica (KeyError, WrongUidError)."""

    def own(self, owner: str, lives_s: float | None) -> None:
        """Change owner and life."""

    def touch(self) -> None:
        """Start the remaining life afresh."""

    def stop(self) -> None:
        """Begin to take everything down."""


def app(lab: Supervised, token: str) -> web.Application:
    """Return the API as an aiohttp application; every call needs the bearer token."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return _error(401, "bearer token missing or wrong")
        try:
            return await handler(request)
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"bad request: {error}")

    api = web.Application(middlewares=[guard])
    api.add_routes(_Routes(lab).table())
    return api


class _Routes:
    def __init__(self, lab: Supervised) -> None:
        self.lab = lab

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self.status),
            web.get("/events", self.events),
            web.get("/notifications", self.notifications),
            web.post("/webhook", self.webhook),
            web.post("/replicas/{name}/delete", self.delete),
            web.post("/owner", self.owner),
            web.post("/touch", self.touch),
            web.post("/down", self.down),
        ]

    async def status(self, _: web.Request) -> web.Response:
        replicas = [replica.as_json() for replica in self.lab.replicas.values()]
        return web.json_response({"replicas": replicas, "processes": self.lab.processes()})

    async def events(self, request: web.Request) -> web.Response:
        return web.json_response(self.lab.events.since(_since(request)))

    async def notifications(self, request: web.Request) -> web.Response:
        return web.json_response(self.lab.notifications.since(_since(request)))

    async def webhook(self, request: web.Request) -> web.Response:
        """Take Alertmanager's notification; one line for each alert in it."""
        for alert in (await request.json())["alerts"]:
            labels = alert["labels"]
            self.lab.notifications.add(
                {
                    "status": alert["status"],
                    "alert": labels["alertname"],
                    "labels": labels,
                    "startsAt": alert["startsAt"],
                    "endsAt": alert.get("endsAt"),
                }
            )
        return web.json_response({})

    async def delete(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        if name not in self.lab.replicas:
            return _error(404, f"no replica '{name}'; there are {', '.join(self.lab.replicas)}")
        try:
            self.lab.delete(name, str(body["uid"]), float(body["grace_s"]))
        except WrongUidError as error:
            return _error(409, str(error))
        return web.json_response({}, status=202)

    async def owner(self, request: web.Request) -> web.Response:
        body = await request.json()
        lives_s = body.get("lives_s")
        self.lab.own(str(body["owner"]), None if lives_s is None else float(lives_s))
        return web.json_response({})

    async def touch(self, _: web.Request) -> web.Response:
        self.lab.touch()
        return web.json_response({})

    async def down(self, _: web.Request) -> web.Response:
        self.lab.stop()
        return web.json_response({}, status=202)


def _since(request: web.Request) -> int:
    return int(request.query.get("since", "0"))


def _error(status: int, what: str) -> web.Response:
    return web.json_response({"error": what}, status=status)
