"""A proxy that drops a header of each request."""

from servers.forwarding import Message, forwarding


def forgetting(header: str, server: str):
    """Its URL, while it runs in front of a server."""

    def forget(asked: Message) -> Message:
        asked.headers = {k: v for k, v in asked.headers.items() if k.lower() != header.lower()}
        return asked

    return forwarding(server, forget)
