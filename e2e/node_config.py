"""What a local node is configured with: pure functions, so that it can be read and tested without root."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import typing

LINK_PREFIX = "ifsim"
# From the range for links inside one network (RFC 6598), where no home or data centre network should be.
LINKS = ipaddress.IPv4Network("100.127.0.0/16")
PODS = ipaddress.IPv4Network("10.244.0.0/16")
CNI_PLUGINS = pathlib.Path("/usr/lib/cni")
SANDBOX_IMAGE = "inferasim.dev/pause:1"
RUN = "/run/containerd"


@dataclasses.dataclass(frozen=True)
class Link:
    """The way between the host and the node: a pair of addresses, the host's first."""

    index: int

    @property
    def host_name(self) -> str:
        """The host's end."""
        return f"{LINK_PREFIX}{self.index}"

    @property
    def node_name(self) -> str:
        """The node's end, as long as it is still on the host."""
        return f"{LINK_PREFIX}{self.index}n"

    @property
    def host(self) -> str:
        """The host's address, where the API server listens."""
        return str(LINKS[4 * self.index + 1])

    @property
    def node(self) -> str:
        """The node's address."""
        return str(LINKS[4 * self.index + 2])

    @property
    def pods(self) -> ipaddress.IPv4Network:
        """The addresses of the node's pods."""
        return list(PODS.subnets(new_prefix=24))[self.index % 256]


def containerd_config(*, cni: pathlib.Path) -> str:
    """containerd's configuration. A process without CAP_SYS_RESOURCE may not make another less likely to be killed for
    lack of memory, which runc would ask for in each sandbox."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "{RUN}"
[grpc]
address = "{RUN}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{cni}"
"""


def cni_config(link: Link) -> dict[str, typing.Any]:
    """The pods' network: a bridge in the node; what leaves it carries the node's address."""
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods0",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(link.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_config(folder: pathlib.Path) -> dict[str, typing.Any]:
    """The kubelet's configuration; cgroups without levels per quality of service, as version 1 in a container needs."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "kubelet.crt"),
        "tlsPrivateKeyFile": str(folder / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{RUN}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi"},
        "oomScoreAdj": 0,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "registerNode": True,
        "shutdownGracePeriod": "0s",
    }


def proxy_config(name: str, config: pathlib.Path) -> dict[str, typing.Any]:
    """kube-proxy's configuration; the connection-tracking limits are the machine's and stay as they are."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(config)},
        "hostnameOverride": name,
        "clusterCIDR": str(PODS),
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
