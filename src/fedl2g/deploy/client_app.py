"""The ClientApp of the coordinator's app: it refuses everything, because a site does not run code that it receives.

A site started with `fedl2g deploy site` never loads it; a SuperNode started in another way does, and is told so.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedl2g.engines.flower.identity import pack_refusal
from fedl2g.errors import SettingError

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
@app.evaluate("keep")
def refuse(message: Message, context: Context) -> Message:
    """Say how a site is started."""
    error = SettingError("SuperNode: it runs the coordinator's app; start the site with `fedl2g deploy site site.toml`")
    return Message(pack_refusal(error), reply_to=message)
