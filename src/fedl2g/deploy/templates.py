"""The files of a new federation, as text; `$names` are filled in by `scaffold`."""

from __future__ import annotations

_README = """\
# $name

A federation of institutions: each keeps its data and its network, and they learn together.

- `app/`: the Flower app that `flwr run` sends to everybody. A few lines of glue; no settings, no data, no dependencies.
- `coordinator/`: for the machine that coordinates. `experiment.toml` says what is learned and how.
- `sites/NAME/`: for one institution each, to be taken there. `site.toml` names its network and its data.

Every machine needs Python with `pip install "fedl2g[flower]"`. Commands are run in this folder.

## Once
```sh
sh coordinator/make-certificates.sh
$certificates
$keys
```
A site keeps `node_key` to itself and sends `node_key.pub` to the coordinator.

## Each time the coordinator starts
```sh
sh coordinator/start-superlink.sh
```
and, the first time, once it runs:
```sh
$registrations
```

## At the sites
```sh
$checks
$starts
```

## The run
```sh
sh coordinator/run.sh
```
The run directory is `coordinator/run`: metrics, checkpoints and `log.txt`, read by `fedl2g show coordinator/run`.
If the SuperLink or the run dies, start the SuperLink and `run.sh` again: the run goes on after its last round.

## Afterwards, at each site
```sh
$exports
```
"""

_APP = """\
[project]
name = "$name"
version = "1.0.0"
description = "A fedl2g federation"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "fedl2g"

[tool.flwr.app.components]
serverapp = "federation_app.server:app"
clientapp = "federation_app.client:app"

[tool.flwr.app.config]
experiment = "$root/coordinator/experiment.toml"
run = "$root/coordinator/run"
"""

_EXPERIMENT = """\
# What the federation learns, and how. `fedl2g explain` describes every setting.
rounds = 100
patience = 0
local_epochs = 1
batch_size = 10
client_lr = 0.01
seed = 0

[method]
name = "fedl2g-f"

[replies]
# A round waits this long for its sites, and needs this many replies; with fewer: wait, skip the round, or stop.
deadline_seconds = 3600.0
minimum = 2
below_minimum = "wait"
maximum_mb = 64.0

[execution]
# A run whose SuperLink is gone for so long stops; start both again, and it goes on after its last round.
link_seconds = 120.0

[federation]
classes = [$classes]
image_shape = [$shape]  # channels, height, width
sites = [$sites]  # client 0, client 1, ...
"""

_CERTIFICATES = """\
#!/bin/sh
# A certificate authority of our own, and the SuperLink's certificate signed by it. Keep ca.key offline.
set -eu
mkdir -p "$root/coordinator/certificates"
cd "$root/coordinator/certificates"
umask 077
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -sha256 -days 3650 -subj "/CN=$name authority" \\
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
openssl ecparam -name prime256v1 -genkey -noout -out server.key
openssl req -new -key server.key -subj "/CN=$host" -out server.csr
cat > server.ext <<END
subjectAltName=$subject,DNS:localhost,IP:127.0.0.1
basicConstraints=CA:FALSE
extendedKeyUsage=serverAuth
END
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -sha256 -extfile server.ext \\
  -out server.crt
chmod 644 ca.crt
echo "certificates are in $root/coordinator/certificates"
"""

_SUPERLINK = """\
#!/bin/sh
# The coordinator's server: TLS, and only registered nodes may connect.
set -eu
cd "$root/coordinator"
export FLWR_HOME="$root/coordinator/flwr" FLWR_TELEMETRY_ENABLED=0
exec flower-superlink --host $host --port $port \\
  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key \\
  --enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation
"""

_REGISTER = """\
#!/bin/sh
# Let a node in: sh coordinator/register.sh PUBLIC-KEY NAME
set -eu
export FLWR_HOME="$root/coordinator/flwr" FLWR_TELEMETRY_ENABLED=0
exec flwr supernode register "$$1" federation --name "$$2"
"""

_RUN = """\
#!/bin/sh
# Start the run, or go on with it after its last round; arguments such as --stream are handed on.
set -eu
export FLWR_HOME="$root/coordinator/flwr" FLWR_TELEMETRY_ENABLED=0
exec flwr run "$root/app" federation "$$@"
"""

_CONNECTION = """\
[superlink]
default = "federation"

[superlink.federation]
address = "$address"
root-certificates = "$root/coordinator/certificates/ca.crt"
insecure = false
"""

_SUPERLINK_UNIT = """\
# /etc/systemd/system/$name-superlink.service
[Unit]
Description=SuperLink of the federation $name
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=/bin/sh $root/coordinator/start-superlink.sh
User=fedl2g
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""

_COORDINATOR_COMPOSE = """\
# docker compose up; the image is one with fedl2g[flower] installed, built by you:
#   FROM python:3.12-slim
#   RUN pip install "fedl2g[flower]"
services:
  superlink:
    image: fedl2g-flower
    command: ["sh", "$root/coordinator/start-superlink.sh"]
    network_mode: host
    restart: on-failure
    volumes: ["$root:$root"]
"""

_SITE = """\
# The site $site: its network and its data, which never leave it. Paths are relative to this file.
client-id = $client
name = "$site"

# An architecture of fedl2g (`fedl2g models`), or a function of your own: "site_code:build_model" in site_code.py.
model = "site_code:build_model"

# A folder of images with a folder for each class, an .npz file, or a function of your own: "site_code:load_data".
data = "data"

# Where this site's models live.
store = "store"
device = "cpu"
maximum-request-mb = 64.0

[superlink]
address = "$address"
root-certificates = "ca.crt"
private-key = "node_key"
"""

_CODE = '''\
"""The network of the site $site."""

from torch import nn


def build_model(classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """A classifier that ends in a linear layer named `fc`; fedl2g cuts it there."""
    channels, height, width = image_shape

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
            )
            self.fc = nn.Linear(16 * 4 * 4, classes)

        def forward(self, x):
            return self.fc(self.body(x))

    return Network()
'''

_KEY = """\
#!/bin/sh
# This node's key pair: node_key stays here, node_key.pub goes to the coordinator.
set -eu
cd "$root/sites/$site"
fedl2g deploy key node_key
"""

_SUPERNODE = """\
#!/bin/sh
# Joins the federation; only outgoing connections, to $address.
set -eu
cd "$root/sites/$site"
export FLWR_HOME="$root/sites/$site/flwr" FLWR_TELEMETRY_ENABLED=0
exec flower-supernode --superlink $address --root-certificates ca.crt \\
  --auth-supernode-private-key node_key --host 127.0.0.1 --port $runtime_port \\
  --node-config 'client-id=$client site="$root/sites/$site/site.toml"'
"""

_SUPERNODE_UNIT = """\
# /etc/systemd/system/$name-$site.service
[Unit]
Description=SuperNode of $site in the federation $name
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=/bin/sh $root/sites/$site/start-supernode.sh
User=fedl2g
Restart=always
RestartSec=30

[Install]
WantedBy=multi-user.target
"""

_SITE_COMPOSE = """\
# docker compose up; see the coordinator's compose.yaml for the image.
services:
  supernode:
    image: fedl2g-flower
    command: ["sh", "$root/sites/$site/start-supernode.sh"]
    network_mode: host
    restart: always
    volumes: ["$root/sites/$site:$root/sites/$site"]
"""

_GLUE = '"""Glue: all code is in the package fedl2g, installed on every node."""\n'

COMMON = {
    "README.md": _README,
    "app/pyproject.toml": _APP,
    "app/federation_app/__init__.py": _GLUE,
    "app/federation_app/client.py": _GLUE + '\nfrom fedl2g.deploy.client_app import app\n\n__all__ = ["app"]\n',
    "app/federation_app/server.py": _GLUE + '\nfrom fedl2g.deploy.server_app import app\n\n__all__ = ["app"]\n',
    "coordinator/experiment.toml": _EXPERIMENT,
    "coordinator/make-certificates.sh": _CERTIFICATES,
    "coordinator/start-superlink.sh": _SUPERLINK,
    "coordinator/register.sh": _REGISTER,
    "coordinator/run.sh": _RUN,
    "coordinator/flwr/config.toml": _CONNECTION,
    "coordinator/superlink.service": _SUPERLINK_UNIT,
    "coordinator/compose.yaml": _COORDINATOR_COMPOSE,
}

SITE = {
    "site.toml": _SITE,
    "site_code.py": _CODE,
    "make-key.sh": _KEY,
    "start-supernode.sh": _SUPERNODE,
    "supernode.service": _SUPERNODE_UNIT,
    "compose.yaml": _SITE_COMPOSE,
}
