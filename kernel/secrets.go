package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/call/egress"
	"palyra/crypt/scrub"
	"palyra/crypt/vault"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/internal/pin"
)

// A call reads secrets in files of its cell (isolate.SecretsDir). When the call is sealed each is
// found in the vault, and the capsule gets its name, reference, version and the digest of its
// sealed record: that is what is decided about, by policy for each secret, shown and attested. Its
// value is opened in the last step before the program, into sealed memory that palyra-cell copies
// and that is given back when the run is over. It's in no capsule, spec, journal or receipt.

// findSecrets finds what the proposal names in the vault.
func (k *Kernel) findSecrets(ctx context.Context, p *Proposal) error {
	p.secrets, p.uses = nil, nil
	uses, err := egress.ParseUses(p.EgressSecrets)
	if err != nil {
		return err
	}
	if len(p.Secrets)+len(uses) == 0 {
		return nil
	}
	if err := p.checkSecrets(); err != nil {
		return err
	}
	find := func(v *vault.Vault, text string) (i vault.Info, record canon.Digest, err error) {
		ref, err := vault.ParseRef(text)
		if err != nil {
			return i, record, err
		}
		i, record, err = v.Find(ctx, ref, 0)
		if fault.KindOf(err) == fault.NotFound {
			err = fault.New(fault.NotFound, "not_found", fmt.Sprintf("find secret %q", ref), errors.New("the vault has none of the name")).
				WithHint(fmt.Sprintf("palyra vault set --file FILE %s keeps one, palyra vault ls lists those that are there", ref))
		}
		if err == nil && i.Expired() {
			err = fault.New(fault.Refused, "secret_expired", fmt.Sprintf("find secret %q", ref), fmt.Errorf("version %d has expired", i.Version)).
				WithHint("palyra vault set gives the secret a new version")
		}
		return i, record, err
	}
	if err := k.withVault(ctx, "find secrets", func(v *vault.Vault) error {
		for _, s := range p.Secrets {
			name, text, _ := strings.Cut(s, "=")
			i, record, err := find(v, text)
			if err != nil {
				return err
			}
			p.secrets = append(p.secrets, vocabulary.Secret{Name: name, Ref: text, Version: i.Version, Record: record})
		}
		for _, u := range uses { // sorted
			i, record, err := find(v, u.Ref)
			if err != nil {
				return err
			}
			p.uses = append(p.uses, vocabulary.EgressSecret{Use: u.String(), Version: i.Version, Record: record})
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(p.secrets, func(a, b vocabulary.Secret) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (p *Proposal) checkSecrets() error {
	const op = "check secrets"
	if len(p.Secrets) > isolate.MaxSecrets {
		return usage("too_large", op, fmt.Errorf("%d, at most %d", len(p.Secrets), isolate.MaxSecrets))
	}
	if len(p.Secrets) > 0 && p.TierFloor != tier.None && p.TierFloor != tier.C {
		return usage("invalid_input", op, errors.New("secrets need a file system of the call's own, which tier c has"))
	}
	var names []string
	for _, s := range p.Secrets {
		name, ref, _ := strings.Cut(s, "=")
		if err := isolate.CheckSecret(name); err != nil {
			return usage("invalid_input", op, err).WithHint("NAME=vault://SCOPE/KEY")
		}
		if _, err := vault.ParseRef(ref); err != nil {
			return err
		}
		if slices.Contains(names, name) {
			return usage("invalid_input", op, fmt.Errorf("%s is given twice", name))
		}
		names = append(names, name)
	}
	return nil
}

func (k *Kernel) withVault(ctx context.Context, op string, use func(*vault.Vault) error) error {
	if k.cfg.Vault == nil || k.state == nil {
		return fault.New(fault.NotFound, "not_found", op, errors.New("no vault is open here")).
			WithHint("palyra vault init makes one; [vault] of palyrad.toml names what opens it")
	}
	return k.cfg.Vault(ctx, k.VaultLedger(), use)
}

// openSecrets opens the values of the call's secrets. It's the last step before the program.
func (c *call) openSecrets(ctx context.Context) error {
	list := c.s.capsule.Secrets
	if len(list) == 0 {
		return nil
	}
	const op = "open secrets"
	return c.k.withVault(ctx, op, func(v *vault.Vault) error {
		for _, x := range list {
			ref, err := vault.ParseRef(x.Ref)
			if err != nil {
				return err
			}
			value, err := v.GetRecord(ctx, ref, x.Version, x.Record)
			if err != nil {
				return err
			}
			if err := c.k.cfg.Scrub.Add(budget.Owner{Name: c.who.Principal.ID, Reserve: c.who.Reserve}, ref.Key(), value.Bytes()); err != nil {
				value.Wipe()
				return err
			}
			f, err := pin.Bytes("palyra-secret", value.Bytes())
			value.Wipe()
			if err != nil {
				return sealFault(op, err)
			}
			c.s.secrets = append(c.s.secrets, f)
		}
		return nil
	})
}

// values are those of the secrets that were given to a principal. A workspace, a cache, a session
// can pass a value from one of its calls to another, so they count for all of them.
func (k *Kernel) values(who *policy.Entity) scrub.Values { return k.cfg.Scrub.Of(who.ID) }

// HoldsSecret reports whether the input of a tool has the value of a secret that this process gave
// to the principal who. The names of our own tools' members have none: they're no caller's words.
func (k *Kernel) HoldsSecret(who *policy.Entity, input []byte) bool {
	v := k.values(who)
	return v.Holds(input) && v.Holds(input, ourNames(input)...)
}

// checkHoldsNone refuses a proposal with such a value, which capsule, receipt and tape would keep.
func (k *Kernel) checkHoldsNone(who *Caller, p *Proposal) error {
	v := k.values(&who.Principal)
	holds := k.HoldsSecret(&who.Principal, p.Input)
	ours := p.tool != nil && p.Tool != ToolRun // palyra-tool NAME, and then "member=" before the caller's words
	for i, text := range slices.Concat(p.Argv, p.Env) {
		name, _, named := strings.Cut(text, "=")
		switch {
		case ours && (i == 0 || text == p.Tool):
			continue
		case ours && named && toolMembers()[name]:
			text = text[len(name):]
		}
		holds = holds || v.Holds([]byte(text))
	}
	if holds {
		return usage("secret_in_call", "check call", errors.New("it has the value of a secret"))
	}
	return nil
}

// toolMembers are the names of the members of our own tools' inputs.
var toolMembers = sync.OnceValue(func() map[string]bool {
	names := make(map[string]bool)
	for _, t := range tools.All() {
		for _, m := range toolproto.Members(t.Input()) {
			names[m.Name] = true
		}
	}
	for _, m := range toolproto.Members(toolproto.RunInput{}) {
		names[m.Name] = true
	}
	return names
})

// ourNames returns where such names stand in JSON, without their quotation marks. Of what is no
// JSON nothing behind the mistake is one.
func ourNames(text []byte) (out []scrub.Span) {
	d := json.NewDecoder(bytes.NewReader(text))
	var name []bool // for each open object or list: the next token is a name; false in lists
	var object []bool
	for {
		at := d.InputOffset()
		t, err := d.Token()
		if err != nil {
			return out
		}
		top := len(name) - 1
		switch x := t.(type) {
		case json.Delim:
			if x == '{' || x == '[' {
				if top >= 0 {
					name[top] = object[top]
				}
				name, object = append(name, x == '{'), append(object, x == '{')
				continue
			}
			name, object = name[:top], object[:top]
			continue
		case string:
			if top >= 0 && name[top] {
				name[top] = false
				if to := int(d.InputOffset()); toolMembers()[x] && bytes.HasSuffix(text[at:to], []byte(`"`+x+`"`)) {
					out = append(out, scrub.Span{From: to - 1 - len(x), To: to - 1})
				}
				continue
			}
		}
		if top >= 0 {
			name[top] = object[top]
		}
	}
}

// closeSecrets gives the values back.
func (s *sealed) closeSecrets() {
	for _, f := range s.secrets {
		f.Close()
	}
	s.secrets = nil
}

// secretRefs returns the references of secrets, each once, sorted: what policy decides about.
func secretRefs(list []vocabulary.Secret) (refs []string) {
	for _, s := range list {
		refs = append(refs, s.Ref)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

func secretNames(list []vocabulary.Secret) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// blankSecrets are empty files in place of the values, for a plan of a call that doesn't run.
func (s *sealed) blankSecrets() error {
	for range s.capsule.Secrets {
		f, err := pin.Bytes("palyra-secret", nil)
		if err != nil {
			return sealFault("plan secrets", err)
		}
		s.secrets = append(s.secrets, f)
	}
	return nil
}
