"""What a server needs for TLS: certificates and their key."""

import ssl
from pathlib import Path

from tmmu.errors import InvalidConfig

_FIX = "give --tls-cert and --tls-key, both in PEM, without a passphrase"


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 and later with these; ``None`` without. ``INVALID_CONFIG`` for one alone, and for what is neither."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidConfig(f"--tls-{'key' if certificate is None else 'cert'} alone", fix=_FIX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise InvalidConfig(f"{certificate}, {key}: {reason}", fix=_FIX) from error
    return context
