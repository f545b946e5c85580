package console

import (
	"strings"

	"palyra/hub"
)

// beginPairing shows the code of a new pairing, which can't be had again: the page isn't fetched
// again, and its link leads to the device that came with the code.
func (t *turn) beginPairing() error {
	p, err := ask(t, hub.BeginPairing, hub.None{})
	if err != nil {
		return err
	}
	return t.showStill("paircode", "Pair a device", p)
}

func (t *turn) pairing() error {
	p, err := ask(t, hub.GetPairing, hub.PairingQuery{ID: t.words[2]})
	if err != nil {
		return err
	}
	return t.show("pairing", "Pair a device", p)
}

// answerPairing gives a device that shows these digits the scopes that are ticked, or refuses it.
func (t *turn) answerPairing() error {
	id, f := t.words[2], t.v.Form
	if f.Get("answer") != "yes" {
		if _, err := ask(t, hub.DenyPairing, id); err != nil {
			return err
		}
		return t.see("access", "unpaired")
	}
	scopes := append([]string{}, f["scope"]...)
	in := hub.PairingApproval{ID: id, PairingGrant: hub.PairingGrant{
		Digits: strings.Join(strings.Fields(f.Get("digits")), ""), Scopes: &scopes, Replace: f.Get("replace") != ""}}
	if _, err := ask(t, hub.ApprovePairing, in); err != nil {
		return err
	}
	return t.see("access/pairings/"+id, "paired")
}
