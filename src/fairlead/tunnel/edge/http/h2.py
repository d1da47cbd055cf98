"""Requests by HTTP/2: one connection carries pushes and pulls alike. With `http://` it is spoken from the start."""

from __future__ import annotations

import ssl

import httpx

from fairlead.tunnel.edge.http.answer import ANSWER_MAX, Answer, BadHttp, Cut, NoConnection
from fairlead.tunnel.edge.http.lane import Way
from fairlead.tunnel.policy import PACKETS

__all__ = ["H2"]


class H2:
    """A Poster (answer.py); any number of requests at a time."""

    def __init__(self, way: Way) -> None:
        self._way = way
        proxy = way.proxy
        login = None if proxy is None or proxy.user is None else (proxy.user, proxy.password)
        self._client = httpx.AsyncClient(
            http1=way.tls is not None,
            http2=True,
            verify=way.tls or False,
            proxy=None if proxy is None else httpx.Proxy(str(proxy), auth=login),
            trust_env=False,
            headers={"User-Agent": "fairlead"},
        )
        self._url = way.place.origin + way.place.path

    async def post(self, query: str, body: list[bytes], patience_s: float) -> Answer:
        headers = {**self._way.headers, "Content-Type": PACKETS, "Cache-Control": "no-store"}
        if self._way.cookies.header:
            headers["Cookie"] = self._way.cookies.header
        try:
            async with self._client.stream(
                "POST", f"{self._url}?{query}", content=b"".join(body), headers=headers, timeout=patience_s
            ) as response:
                parts: list[bytes] = []
                size = 0
                async for part in response.aiter_raw():
                    size += len(part)
                    if size > ANSWER_MAX:
                        raise BadHttp("The answer is longer than any answer of a gateway.")
                    parts.append(part)
        except httpx.ProxyError as error:
            status = int(str(error)[:3]) if str(error)[:3].isdecimal() else 0
            raise NoConnection(f"{self._way.proxy}: {error}", proxy_status=status) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _certificate(error) or NoConnection(f"cannot connect to {self._way.place.origin}: {error}") from error
        except httpx.TimeoutException:
            raise TimeoutError(f"nothing moved for {patience_s:g} s") from None
        except httpx.HTTPError as error:
            raise Cut(str(error)) from error
        self._client.cookies.clear()
        cookies = response.headers.get_list("set-cookie")
        if cookies:
            self._way.cookies.on_set(cookies)
        return Answer(response.status_code, dict(response.headers), cookies, b"".join(parts))

    async def aclose(self) -> None:
        await self._client.aclose()


def _certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
