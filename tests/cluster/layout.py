"""What the node is made of: addresses, files and command lines. Nothing here touches the machine.

The node lives in namespaces of its own (mounts, network, processes, cgroups), so it has the standard paths and
addresses that a node has, and the machine keeps its own: see `inside.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import build
from tests.cluster.cache import cache

NODE = "node1"
IMAGE_STORE = (
    "image-store"  # containerd without Kubernetes' part: it puts the images in order, then the real one starts
)
HOST_LINK = "drills-k8s"  # the machine's end of the only link to the node
HOST_IP, NODE_IP, LINK_BITS = "10.244.255.1", "10.244.255.2", 30
PODS, SERVICES = "10.244.0.0/24", "10.96.0.0/16"
KUBERNETES_IP, DNS_IP = "10.96.0.1", "10.96.0.10"
SERVER = f"https://{NODE_IP}:6443"
ETCD, ETCD_PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "drills.test/pause:1"
#: Name → (user, group) of everybody who has a kubeconfig.
USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
}
API_HOSTS = (
    "127.0.0.1",
    NODE_IP,
    KUBERNETES_IP,
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True)
class Component:
    """One program of the node. It is started once all of `after` answer."""

    name: str
    argv: tuple[str, ...]
    after: tuple[str, ...] = ()


def components(run: Path) -> list[Component]:
    """Return the node's programs in the order of their start."""
    conf, programs, debian = run / "conf", build.programs(), build.packages()
    etcd = _argv(
        debian / "usr/bin/etcd",
        {
            "name": NODE,
            "data-dir": run / "etcd",
            "listen-client-urls": ETCD,
            "advertise-client-urls": ETCD,
            "listen-peer-urls": ETCD_PEER,
            "initial-advertise-peer-urls": ETCD_PEER,
            "initial-cluster": f"{NODE}={ETCD_PEER}",
            "unsafe-no-fsync": "true",  # nothing in it outlives the node
        },
    )
    proxy = (f"--config={conf}/proxy.json",)
    return [
        Component("etcd", etcd),
        Component(IMAGE_STORE, (str(debian / "usr/bin/containerd"), "-c", str(conf / "images.toml"))),
        Component("containerd", (str(debian / "usr/bin/containerd"), "-c", str(conf / "containerd.toml")), ("images",)),
        Component("kube-apiserver", _apiserver(conf, programs), ("etcd",)),
        Component("kube-controller-manager", _controllers(conf, programs), ("kube-apiserver",)),
        Component("kube-scheduler", _scheduler(conf, programs), ("kube-apiserver",)),
        Component("kubelet", _kubelet(conf, programs), ("kube-apiserver", "containerd")),
        Component("kube-proxy", (str(programs / "kube-proxy"), *proxy), ("kube-apiserver",)),
    ]


def _argv(program: Path, options: Mapping[str, object]) -> tuple[str, ...]:
    return (str(program), *(f"--{name}={value}" for name, value in options.items()))


def _apiserver(conf: Path, programs: Path) -> tuple[str, ...]:
    options = {
        "bind-address": NODE_IP,
        "advertise-address": NODE_IP,
        "secure-port": 6443,
        "etcd-servers": ETCD,
        "service-cluster-ip-range": SERVICES,
        "tls-cert-file": conf / "apiserver.crt",
        "tls-private-key-file": conf / "apiserver.key",
        "client-ca-file": conf / "ca.crt",
        "token-auth-file": conf / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": conf / "sa.key",
        "service-account-signing-key-file": conf / "sa.key",
        "kubelet-client-certificate": conf / "kubelet-client.crt",
        "kubelet-client-key": conf / "kubelet-client.key",
        "kubelet-certificate-authority": conf / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
    }
    return _argv(programs / "kube-apiserver", options)


def _controllers(conf: Path, programs: Path) -> tuple[str, ...]:
    options = {
        **_client(conf / "controller-manager.conf"),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": conf / "sa.key",
        "root-ca-file": conf / "ca.crt",
        "cluster-signing-cert-file": conf / "ca.crt",
        "cluster-signing-key-file": conf / "ca.key",
        "allocate-node-cidrs": "false",
        "flex-volume-plugin-dir": conf.parent / "volume-plugins",  # it makes the folder, by default below /usr
        "cluster-cidr": PODS,
    }
    return _argv(programs / "kube-controller-manager", options)


def _scheduler(conf: Path, programs: Path) -> tuple[str, ...]:
    return _argv(programs / "kube-scheduler", _client(conf / "scheduler.conf"))


def _client(kubeconfig: Path) -> dict[str, object]:
    """Return what the controller manager and the scheduler are told alike; there is only one of each."""
    names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return {**dict.fromkeys(names, kubeconfig), "bind-address": "127.0.0.1", "leader-elect": "false"}


def _kubelet(conf: Path, programs: Path) -> tuple[str, ...]:
    options = {
        "config": conf / "kubelet.json",
        "kubeconfig": conf / "kubelet.conf",
        "hostname-override": NODE,
        "node-ip": NODE_IP,
    }
    return _argv(programs / "kubelet", options)


def config_files(run: Path) -> dict[str, str]:
    """Return name → text of the files in the node's conf folder."""
    conf = run / "conf"
    return {
        "images.toml": _image_store(run),
        "containerd.toml": _image_store(run).replace(NO_KUBERNETES, "") + _containerd(run),
        "kubelet.json": json.dumps(_kubelet_config(run), indent=2),
        "proxy.json": json.dumps(_proxy_config(conf), indent=2),
        "resolv.conf": f"nameserver {DNS_IP}\n",
        "net.d/10-drills.conflist": json.dumps(_network(), indent=2),
    }


NO_KUBERNETES = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]'


def store() -> Path:
    """Return the folder of the unpacked images, which outlives the node."""
    return cache() / "containerd"


def _image_store(run: Path) -> str:
    return f"""version = 2
root = "{store()}"
state = "/run/containerd"
{NO_KUBERNETES}
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{run}/opt"
"""


def _containerd(run: Path) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE nobody may lower a score, and every sandbox would fail.
    return f"""[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{build.packages()}/usr/lib/cni"
    conf_dir = "{run}/conf/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def _kubelet_config(run: Path) -> dict[str, object]:
    conf = run / "conf"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(conf / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(conf / "kubelet.crt"),
        "tlsPrivateKeyFile": str(conf / "kubelet.key"),
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": str(conf / "resolv.conf"),
        "volumePluginDir": str(run / "volume-plugins"),
        # The machine's disk is shared: how full it is is not this node's doing.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        # Images cannot be fetched again, so none may be thrown away.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "shutdownGracePeriod": "0s",
    }


def _proxy_config(conf: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": NODE_IP,
        "hostnameOverride": NODE,
        "clusterCIDR": PODS,
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
        "clientConnection": {"kubeconfig": str(conf / "proxy.conf")},
        # The machine's connection tracking is left as it is.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "0s"},
    }


def _network() -> dict[str, object]:
    ranges: Sequence[object] = [[{"subnet": PODS, "rangeStart": "10.244.0.10"}]]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": ranges},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return {"cniVersion": "1.0.0", "name": "drills", "plugins": [bridge, portmap]}
