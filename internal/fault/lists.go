package fault

// Lists returns the hint that says how to find a thing of that name, "" where there is none:
// errors of reason not_found have it.
func Lists(thing string) string {
	for i := range lists {
		if lists[i].Thing == thing {
			return lists[i].Do
		}
	}
	return ""
}

var lists = [...]struct{ Thing, Do string }{
	{Thing: "approval", Do: "palyra approvals ls --state all lists them"},
	{Thing: "artifact", Do: "palyra runs show RUN names the artifacts of a run"},
	{Thing: "decision", Do: "a denial names its decision; so does palyra journal show INDEX --json"},
	{Thing: "device", Do: "palyra devices ls lists the paired devices"},
	{Thing: "entry", Do: "palyra journal ls lists them"},
	{Thing: "grant", Do: "palyra approvals grants lists them"},
	{Thing: "member", Do: "palyra members ls lists principals, roles and versions"},
	{Thing: "model", Do: "palyra models ls lists those that the operator declared"},
	{Thing: "pairing", Do: "palyra devices pairings lists them"},
	{Thing: "passkey", Do: "palyra passkeys ls lists them"},
	{Thing: "run", Do: "palyra runs ls lists them"},
	{Thing: "server", Do: "palyra mcp ls lists the MCP servers"},
	{Thing: "session", Do: "palyra sessions ls lists them"},
	{Thing: "token", Do: "palyra token ls lists them"},
	{Thing: "tool", Do: "palyra tools ls lists the tools"},
}
