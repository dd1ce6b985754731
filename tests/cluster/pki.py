"""Certificates and credentials of the node, made anew for each: they live as long as it does, a year at most."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=365)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """A certificate authority that writes what it signs into one folder, for root's eyes only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, mode=0o700)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name("drills-test-ca", [])
        builder = self._builder(self.name, self.key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.certificate = builder.sign(self.key, hashes.SHA256())
        _write_key(folder / "ca.key", self.key)
        self._write_certificate("ca", self.certificate)

    def issue(self, file: str, common: str, organisations: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        """Write FILE.crt and FILE.key: of a server where it has hosts, else of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(_name(common, organisations), key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        _write_key(self.folder / f"{file}.key", key)
        self._write_certificate(file, builder.sign(self.key, hashes.SHA256()))

    def _builder(self, name: x509.Name, key: Key) -> x509.CertificateBuilder:
        # An hour back: a clock that was just set right must not make it invalid.
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        builder = x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(begin).not_valid_after(begin + LIFE)

    def _write_certificate(self, file: str, certificate: x509.Certificate) -> None:
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_service_account_key(folder: Path) -> None:
    """Write sa.key, by which the API server signs the tokens of ServiceAccounts."""
    _write_key(folder / "sa.key", rsa.generate_private_key(public_exponent=65537, key_size=2048))


def write_users(folder: Path, server: str, users: dict[str, tuple[str, str]]) -> None:
    """Write tokens.csv and a NAME.conf (a kubeconfig) for each name → (user, group or "")."""
    lines = []
    for name, (user, group) in users.items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{group}"' if group else f"{token},{user},{user}")
        (folder / f"{name}.conf").write_text(_kubeconfig(folder, server, name, token))
        (folder / f"{name}.conf").chmod(0o600)
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    (folder / "tokens.csv").chmod(0o600)


def _kubeconfig(folder: Path, server: str, name: str, token: str) -> str:
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "drills-test", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "drills-test", "context": {"cluster": "drills-test", "user": name}}],
        "current-context": "drills-test",
    }
    return json.dumps(config, indent=2) + "\n"  # JSON is YAML


def _name(common: str, organisations: Sequence[str]) -> x509.Name:
    organised = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organisations]
    return x509.Name([*organised, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(file: Path, key: Key) -> None:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
