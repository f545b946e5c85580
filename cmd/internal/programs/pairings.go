package programs

import "palyra/cmd/internal/command"

// pairings returns the commands by which a device gets a certificate, and loses it.
func pairings() []command.Command {
	grants := []command.Flag{
		{Name: "scope", Arg: "NAME", Help: "give this permission of those that the device asks for;\nmay be given more than once (default: all that it asks)", Repeat: true},
		{Name: "replace", Help: "the device takes the place of the one with its id, whose\ncertificates end"},
	}
	return []command.Command{
		{Name: "devices ls", Short: "list the paired devices",
			Examples: []command.Example{{Line: "palyra devices ls", Does: "whom they act as, until when, and when they last called"}}},
		{Name: "devices show", Operands: "ID", Min: 1, Max: 1, Short: "show a device with its certificates",
			Examples: []command.Example{{Line: "palyra devices show laptop", Does: "its key, scopes and certificates"}}},
		{Name: "devices revoke", Operands: "ID", Min: 1, Max: 1, Short: "end a device for good",
			Long: `
Its connections are cut at once, and the runs that it began are cancelled. Only
pairing it again gives it a certificate.`,
			Examples: []command.Example{{Line: "palyra devices revoke laptop", Does: "at once, and not to be undone"}}},
		{Name: "devices rm", Operands: "ID", Min: 1, Max: 1, Short: "forget a device that has ended",
			Long: `
One that was revoked or has expired. It counts no longer among its principal's
devices, and its id is free; the journal keeps what it did.`,
			Examples: []command.Example{{Line: "palyra devices rm laptop", Does: "after palyra devices revoke laptop"}}},
		{Name: "devices renew", Short: "get this device's next certificate now",
			Long: `
Of the device of --device DIR, whose certificate is otherwise renewed by a command
after two thirds of its life. With it come the hub's roots: palyra devices root.`,
			Examples: []command.Example{{Line: "palyra devices renew --device ~/.config/palyra/hub", Does: "good for 24 hours from now"}}},
		{Name: "devices root", Short: "show or replace the root of the hub's certificates",
			Long: `
With --replace the hub makes another root. Devices that renew are told of it; their
old root certifies it. A day later every device with a good certificate knows it,
and the hub puts it in force by itself: the old root's key is then gone. With
--at-once, which is for a root's key that was stolen, it is in force now. Devices
that haven't renewed since it was introduced then have to pair again, and a thief
can be their hub until they do.`,
			Flags:    []command.Flag{{Name: "replace", Help: "introduce another root"}, {Name: "at-once", Help: "and put it, or the introduced one, in force now"}},
			Examples: []command.Example{{Line: "palyra devices root", Does: "the root in force, and those before and after it"}, {Line: "palyra devices root --replace", Does: "in force in a day"}}},
		{Name: "devices pair", Short: "make a code for a device, and give it a certificate",
			Long: `
Shows a code that is good for five minutes and one attempt, waits for the device
that comes with it (palyra pair), shows what it asks for, and asks on the terminal
for the six digits that the device shows. If they are the hub's own, no one is in
between, and the device gets a certificate; if not, the pairing ends. The hub
doesn't show its digits: read them on the device. docs/formats/pair.md has it all.`,
			Flags: append([]command.Flag{{Name: "no-wait", Help: "print the code and end; palyra devices pairings and\npalyra devices approve do the rest"}}, grants...),
			Exits: []command.Exit{{Code: "5", Meaning: "no digits were typed"}},
			Examples: []command.Example{{Line: "palyra devices pair", Does: "shows a code, and asks for the device's digits"},
				{Line: "palyra devices pair --no-wait", Does: "prints the code alone"}}},
		{Name: "devices pairings", Short: "list the pairings that wait, and the last that ended",
			Examples: []command.Example{{Line: "palyra devices pairings", Does: "who asks for what"}}},
		{Name: "devices approve", Operands: "PAIRING DIGITS", Min: 2, Max: 2, Short: "give the device that shows these digits a certificate",
			Long: `
DIGITS are the six that the device shows. Others end the pairing.`,
			Flags:    grants,
			Examples: []command.Example{{Line: "palyra devices approve par_... 152278", Does: "the device gets what it asks for"}}},
		{Name: "devices deny", Operands: "PAIRING", Min: 1, Max: 1, Short: "refuse a device, or cancel a code",
			Examples: []command.Example{{Line: "palyra devices deny par_...", Does: "its code is good no longer"}}},
		{Name: "pair", Operands: "CODE|FILE|- ADDRESS", Min: 2, Max: 2, Short: "pair this device with a hub, and get a certificate",
			Long: `
CODE is what palyra devices pair shows at the hub; better in a FILE, or - for
standard input, as other users of a host can read command lines. ADDRESS is the
host and port of the hub's pairing.listen. The key is made here and stays here.
Shows six digits, which the hub's operator types there, and waits. Then DIR has
key.pem, chain.pem, roots.pem and hub.json, and each command that asks palyrad
takes --device DIR. A certificate is good for 24 hours; a command after 16 of
them renews it. A device that was away for longer pairs again.`,
			Flags: []command.Flag{
				{Name: "device", Arg: "DIR", Help: "where the key and the certificates go (required)"},
				{Name: "id", Arg: "NAME", Help: "the id that this device asks for: a-z, 0-9 and '-'\n(required)"},
				{Name: "url", Arg: "URL", Help: "where the hub serves devices (peer.listen), such as\nhttps://hub.example:7444; DIR keeps it for --device DIR"},
				{Name: "scope", Arg: "NAME", Help: "a permission that it asks for; may be given more than\nonce (default session.read, session.write and run.start)", Repeat: true},
				{Name: "replace", Help: "DIR has a key already: put the new one in its place"}},
			Exits:    []command.Exit{{Code: "5", Meaning: "the hub's operator said no"}, {Code: "8", Meaning: "the other side isn't the hub, or someone is in between"}},
			Examples: []command.Example{{Line: "palyra pair --device ~/.config/palyra/hub --id laptop code.txt hub.example:7445", Does: "shows the digits, and waits for the operator"}}},
	}
}
