package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// AddRecipient wraps the vault's key for one more recipient, which must be the one that want
// describes. To remove it again is [Vault.RotateKey]: it could have kept the key.
func (v *Vault) AddRecipient(ctx context.Context, r seal.Recipient, want Recipient) error {
	const op = "add recipient"
	return v.with(ctx, func() error {
		h, idx := *v.head, v.idx.clone()
		if p, ok := r.(*seal.Passphrase); ok {
			if label, ok := h.passphraseOf(p); ok {
				return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("the passphrase is that of %q already", label)).
					WithHint("with two labels for one passphrase, removing either would leave it opening the vault")
			}
		}
		s, err := r.Wrap(v.kek, h.key())
		if err != nil {
			return err
		}
		same := func(o *seal.Stanza) bool { return o.Label == s.Label || !s.ID.IsZero() && o.ID == s.ID }
		switch at := slices.IndexFunc(h.Recipients, same); {
		case want != Recipient{s.Label, s.Type, s.ID}:
			return fault.New(fault.Refused, "invalid_input", op, errors.New("it is another one than was decided about"))
		case len(h.Recipients) >= maxRecipients:
			return fault.New(fault.Refused, "too_large", op, fmt.Errorf("the vault has %d recipients, its most", maxRecipients))
		case at >= 0 && h.Recipients[at].Label == s.Label:
			return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("there is one called %q", s.Label))
		case at >= 0:
			return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("the key is that of %q already", h.Recipients[at].Label))
		}
		h.Recipients = append(slices.Clip(h.Recipients), s)
		if p, ok := r.(*seal.PublicKey); ok {
			idx.Recipients = append(idx.Recipients, line{s.Label, string(p.Encode())})
		}
		return v.commit(ctx, &h, idx, v.kek)
	})
}

// passphraseOf returns the label of the recipient that has the passphrase.
func (h *head) passphraseOf(p *seal.Passphrase) (label string, ok bool) {
	for _, s := range h.Recipients {
		if k, err := p.Unwrap(s, h.key()); err == nil {
			k.Wipe()
			return s.Label, true
		}
	}
	return "", false
}

// RotateKey makes a new key for the vault and wraps it for the same recipients but those in drop.
// A passphrase can be wrapped for only if the vault was opened with it.
func (v *Vault) RotateKey(ctx context.Context, drop ...string) error {
	return v.rotate(ctx, false, drop)
}

func (v *Vault) rotate(ctx context.Context, values bool, drop []string) error {
	return v.with(ctx, func() error {
		to, err := v.recipients(drop)
		if err != nil {
			return err
		}
		h, idx, kek := *v.head, v.idx.clone(), seal.NewKey()
		h.Generation++
		if values {
			idx.Renew = h.Generation
		}
		if err = v.wrap(&h, idx, kek, to); err == nil {
			err = v.rekey(&h, idx, kek)
		}
		if err == nil {
			err = v.commit(ctx, &h, idx, kek)
		}
		if v.kek != kek {
			kek.Wipe()
		}
		return err
	})
}

// recipients returns those of the head but drop.
func (v *Vault) recipients(drop []string) (to []seal.Recipient, err error) {
	const op = "rotate the vault's key"
	for _, label := range drop {
		if !slices.ContainsFunc(v.head.Recipients, func(s *seal.Stanza) bool { return s.Label == label }) {
			return nil, fault.New(fault.NotFound, "not_found", op, fmt.Errorf("there is no recipient %q", clip(label)))
		}
	}
	for _, s := range v.head.Recipients {
		if slices.Contains(drop, s.Label) {
			continue
		}
		if at := slices.IndexFunc(v.idx.Recipients, func(l line) bool { return l.Label == s.Label }); at >= 0 {
			p, err := seal.ParseRecipient(s.Label, []byte(v.idx.Recipients[at].Line))
			if err != nil {
				return nil, err
			}
			to = append(to, p)
			continue
		}
		p, ok := v.id.(*seal.Passphrase)
		if ok {
			k, err := p.Unwrap(s, v.head.key())
			k.Wipe()
			ok = err == nil
		}
		if !ok {
			return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("the passphrase of %q isn't at hand", s.Label)).
				WithHint("unlock with that passphrase; or drop that recipient, and add it again behind the rotation")
		}
		to = append(to, p.Labeled(s.Label))
	}
	if len(to) == 0 {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("no recipient would be left"))
	}
	return to, nil
}

// rekey seals the keys of all records under another key.
func (v *Vault) rekey(h *head, idx *index, kek *seal.Key) error {
	for _, s := range idx.Secrets {
		for j := range s.Versions {
			x := &s.Versions[j]
			k, err := v.recordKey(s.Ref, x)
			if err != nil {
				return err
			}
			x.Key, err = seal.Seal(kek, x.context("vault/record-key", s.Ref, h.Generation), k.Bytes())
			k.Wipe()
			if err != nil {
				return err
			}
		}
	}
	return nil
}
