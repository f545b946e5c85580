package local

import (
	"context"

	"palyra/crypt/keyring"
	"palyra/hub"
)

// keyOperations returns the operations of attestation keys.
func (h *Hub) keyOperations() []hub.Entry {
	return []hub.Entry{hub.ListKeys.By(h.listKeys), hub.RotateKey.By(h.rotateKey)}
}

func (h *Hub) listKeys(context.Context, hub.Caller, hub.None) (hub.Page[hub.Key], error) {
	return keysOf(h.k.Keys()), nil
}

func (h *Hub) rotateKey(ctx context.Context, c hub.Caller, r hub.KeyRotation) (hub.Page[hub.Key], error) {
	if err := h.room(c); err != nil {
		return hub.Page[hub.Key]{}, err
	}
	k, err := h.k.RotateKey(ctx, c.User, r.IntroduceOnly)
	if err != nil {
		return hub.Page[hub.Key]{}, err
	}
	return keysOf(k), nil
}

func keysOf(k *keyring.History) hub.Page[hub.Key] {
	p := hub.Page[hub.Key]{Items: []hub.Key{}}
	for i := range k.Keys {
		t := &k.Keys[i]
		p.Items = append(p.Items, hub.Key{Hint: t.Hint, File: k.FileOf(t), State: k.StateOf(t), From: t.From, To: t.To, Start: t.ValidFor.Start, End: t.ValidFor.End})
	}
	return p
}
