"""Certificates and keys, made on the spot: a small authority for the server's TLS, and a key pair for each node."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedprompt.federation.checkpoint import write_atomically

CURVE = ec.SECP384R1
YEARS = timedelta(days=825)  # as long as common clients accept


def write_private(path: Path, content: bytes) -> None:
    """A file that its owner alone may read, from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_server_certificates(folder: Path, hosts: list[str]) -> None:
    """An authority (``ca.crt``) and a server certificate for these host names and addresses (``server.crt``, ``.key``).

    The authority's own key is thrown away: nobody can make another certificate that the nodes would believe.
    """
    authority_key, server_key = ec.generate_private_key(CURVE()), ec.generate_private_key(CURVE())
    authority = _certificate("fedprompt federation", authority_key, None, authority_key, [])
    server = _certificate(hosts[0], server_key, authority, authority_key, hosts)
    write_atomically(folder / "ca.crt", _pem(authority))
    write_atomically(folder / "server.crt", _pem(server))
    write_private(folder / "server.key", _private_pem(server_key))


def make_node_keys(folder: Path) -> str:
    """A node's key pair (``node.key``, ``node.pub``); returns the public one as a line of text."""
    key = ec.generate_private_key(CURVE())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_private(folder / "node.key", private)
    write_atomically(folder / "node.pub", public + b"\n")
    return public.decode()


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: list[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + YEARS)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        purpose = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
