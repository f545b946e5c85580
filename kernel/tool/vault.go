package tool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/scrub"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// The tools for secrets. The gate decides about the reference, which stands in the arguments of a
// program that only confirms them. The vault is changed, or the secret opened, in the last step
// before that program: if it can't be, the call is refused. The value is in no capsule, output,
// journal or receipt; Vault hands it over.

// Vault is how the tools for secrets reach the vault. Calls may use it at once.
type Vault struct {
	// Open opens the vault for a call that may not be decided yet, and the caller closes it.
	Open func(ctx context.Context) (*vault.Vault, error)
	// Each bounds the secrets that one principal makes, and Spare is how many of the vault's places
	// only owners use. Owners without a token aren't bound. 0: no bound.
	Each, Spare int
	// Scrub gets the values that are revealed, to keep them from output of whoever asked, and from
	// logs. nil: none does.
	Scrub *scrub.Registry
}

// Beside is what a call of a tool for secrets has besides its input. It's for one call, and stays
// its owner's, who wipes Values when the call is over.
type Beside struct {
	Values    []*seal.Secret // one for vault.set, one for each reference of vault.import
	Recipient seal.Recipient // for vault.add_recipient
	Owner     bool           // the caller is an owner without a token, whom Vault.Each doesn't bind
	// Done gets what the call did, once that is certain. What it gets is wiped by it.
	Done func(VaultDone)
}

// besideKey is the key of the Beside in a call's ctx. It is data for a call that policy decides,
// and lends no authority.
type besideKey struct{}

// WithBeside returns the ctx of a call that has b. A tool for secrets does nothing in a call that
// has none: no one would get what it reveals.
func WithBeside(ctx context.Context, b *Beside) context.Context {
	return context.WithValue(ctx, besideKey{}, b)
}

func besideOf(ctx context.Context, name string) (*Beside, error) {
	if b, ok := ctx.Value(besideKey{}).(*Beside); ok {
		return b, nil
	}
	return nil, usage("invalid_input", fmt.Sprintf("call tool %q", name), errors.New("it is called for a command about the vault alone")).
		WithHint("palyra help vault lists the commands; over HTTP the vault has operations of its own")
}

// VaultDone is what a call of a tool for secrets did.
type VaultDone struct {
	Secret *seal.Secret // of vault.get; the receiver wipes it
	Info   vault.Info   // of vault.get and vault.set
	List   []vault.Info // of vault.list, vault.import and vault.export
	File   []byte       // of vault.export: encrypted
}

// vaultEffect is the kernel.Effect of such a call. Owned by the call.
type vaultEffect struct {
	door *Vault
	who  budget.Owner
	by   vault.Storer
	name string // of the tool
	ref  vault.Ref

	drafts []*vault.Draft // of vault.set and vault.import; nil: the caller named the records
	do     func(ctx context.Context, v *vault.Vault, done *VaultDone) error
	done   VaultDone
	tell   func(VaultDone)
}

var _ kernel.Effect = (*vaultEffect)(nil)

func expandVault(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error) {
	x := &vaultEffect{
		door: t.cfg.Vault, name: e.Name,
		who: budget.Owner{Name: who.ID, Reserve: slices.Contains(who.Roles, policy.RoleOwner)},
	}
	x.by.Name = who.ID
	if b, ok := ctx.Value(besideKey{}).(*Beside); x.door != nil && !(ok && b.Owner) {
		x.by.Most, x.by.Spare = x.door.Each, x.door.Spare
	}
	var err error
	switch in := input.(type) {
	case *toolproto.VaultGetInput:
		err = x.get(ctx, in)
	case *toolproto.VaultListInput:
		err = x.list(in)
	case *toolproto.VaultSetInput:
		err = x.set(ctx, in)
	case *toolproto.VaultRemoveInput:
		x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) error { return v.Remove(ctx, x.ref) }
		x.ref, err = vault.ParseRef(in.Ref)
	case *toolproto.VaultRotateInput:
		x.do = func(ctx context.Context, v *vault.Vault, _ *VaultDone) (err error) {
			if in.Values {
				_, err = v.RotateValues(ctx, in.Drop...)
				return err
			}
			return v.RotateKey(ctx, in.Drop...)
		}
	case *toolproto.VaultAddRecipientInput:
		err = x.addRecipient(in)
	case *toolproto.VaultImportInput:
		err = x.importAll(ctx, in)
	case *toolproto.VaultExportInput:
		err = x.export(ctx, in)
	default:
		err = fault.New(fault.Internal, "internal", fmt.Sprintf("expand tool %q", e.Name), fmt.Errorf("it has no work"))
	}
	if err != nil {
		return nil, err
	}
	out, err := expandPlain(ctx, t, e, policy.Entity{}, input)
	if err == nil {
		out.Effect = x
	}
	return out, err
}

// get names the version that is the newest now, so that the decision is about that one.
func (x *vaultEffect) get(ctx context.Context, in *toolproto.VaultGetInput) (err error) {
	if x.ref, err = vault.ParseRef(in.Ref); err != nil {
		return err
	}
	if in.Version < 0 {
		return usage("invalid_input", "find version", fmt.Errorf("%d", in.Version))
	}
	if in.Version == 0 {
		v, err := x.door.Open(ctx)
		if err != nil {
			return err
		}
		defer v.Close()
		h, err := v.History(ctx, x.ref)
		if err != nil {
			return err
		}
		in.Version = int64(h[len(h)-1].Version)
	}
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) (err error) {
		if done.Secret, done.Info, err = v.Get(ctx, x.ref, uint64(in.Version)); err != nil {
			return err
		}
		return x.door.Scrub.Add(x.who, x.ref.Key(), done.Secret.Bytes())
	}
	return nil
}

func (x *vaultEffect) list(in *toolproto.VaultListInput) (err error) {
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) (err error) {
		done.List, err = v.List(ctx)
		return err
	}
	if in.Ref == "" {
		return nil
	}
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) (err error) {
		done.List, err = v.History(ctx, x.ref)
		return err
	}
	x.ref, err = vault.ParseRef(in.Ref)
	return err
}

// set seals the value, so that the decision is about that record.
func (x *vaultEffect) set(ctx context.Context, in *toolproto.VaultSetInput) (err error) {
	const op = "find version"
	if x.ref, err = vault.ParseRef(in.Ref); err != nil {
		return err
	}
	var expires time.Time
	if in.Expires != "" {
		if expires, err = time.Parse(time.RFC3339, in.Expires); err != nil {
			return usage("invalid_input", "read expires", fmt.Errorf("want a time such as 2026-01-02T15:04:05Z"))
		}
	}
	switch {
	case in.From < 0:
		return usage("invalid_input", op, fmt.Errorf("from %d", in.From))
	case in.Version < 0, (in.Version > 0) != (in.Record != ""):
		return usage("invalid_input", op, fmt.Errorf("new version %d, with record %q", in.Version, in.Record))
	case in.Version == 0:
		if x.drafts, err = x.seal(ctx, in, expires); err != nil {
			return err
		}
		in.Version, in.Record = int64(x.drafts[0].Version()), x.drafts[0].Digest().String()
	}
	want, err := canon.ParseDigest(in.Record)
	if err != nil {
		return usage("invalid_input", op, errors.New("record: want sha256:HEX"))
	}
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) error {
		if err := x.store(ctx, v, []canon.Digest{want}, done); err != nil {
			return err
		}
		done.Info, done.List = done.List[0], nil
		return nil
	}
	return nil
}

// store stores the drafts, if they are what was decided about.
func (x *vaultEffect) store(ctx context.Context, v *vault.Vault, want []canon.Digest, done *VaultDone) error {
	if x.drafts == nil { // the records are those that the caller named
		return fault.New(fault.Refused, "invalid_input", "set secrets", errors.New("the record isn't one that was sealed for this call"))
	}
	if err := v.StoreAll(ctx, x.drafts, want); err != nil {
		return err
	}
	for _, d := range x.drafts {
		done.List = append(done.List, d.Info())
	}
	return nil
}

// importAll seals the values, so that the decision is about those records.
func (x *vaultEffect) importAll(ctx context.Context, in *toolproto.VaultImportInput) error {
	const op = "import secrets"
	for _, list := range [][]string{in.Expires, in.Versions, in.Records} {
		if len(list) != 0 && len(list) != len(in.Refs) {
			return usage("invalid_input", op, fmt.Errorf("%d words for %d references", len(list), len(in.Refs)))
		}
	}
	if len(in.Versions) != len(in.Records) {
		return usage("invalid_input", op, errors.New("versions come with records"))
	}
	values := make([]vault.NewValue, len(in.Refs))
	for i, s := range in.Refs {
		var err error
		if values[i].Ref, err = vault.ParseRef(s); err != nil {
			return err
		}
		if len(in.Expires) > 0 && in.Expires[i] != "never" {
			if values[i].Expires, err = time.Parse(time.RFC3339, in.Expires[i]); err != nil {
				return usage("invalid_input", "read expires", fmt.Errorf("want a time such as 2026-01-02T15:04:05Z, or never"))
			}
		}
	}
	if len(in.Records) == 0 {
		if err := x.sealAll(ctx, values); err != nil {
			return err
		}
		for _, d := range x.drafts {
			in.Versions, in.Records = append(in.Versions, strconv.FormatUint(d.Version(), 10)), append(in.Records, d.Digest().String())
		}
	}
	want := make([]canon.Digest, len(in.Records))
	for i, s := range in.Records {
		var err error
		if want[i], err = canon.ParseDigest(s); err != nil {
			return usage("invalid_input", op, errors.New("records: want sha256:HEX"))
		}
		if n, err := strconv.ParseUint(in.Versions[i], 10, 63); err != nil || n == 0 || strconv.FormatUint(n, 10) != in.Versions[i] {
			return usage("invalid_input", op, fmt.Errorf("%q is no number of a version", in.Versions[i]))
		}
	}
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) error { return x.store(ctx, v, want, done) }
	return nil
}

func (x *vaultEffect) sealAll(ctx context.Context, values []vault.NewValue) error {
	b, err := besideOf(ctx, x.name)
	if err == nil && len(b.Values) != len(values) {
		err = usage("invalid_input", "import secrets", fmt.Errorf("%d values come with the call, want %d", len(b.Values), len(values)))
	}
	if err != nil {
		return err
	}
	for i := range values {
		values[i].Value, values[i].By = b.Values[i].Bytes(), x.by
	}
	v, err := x.door.Open(ctx)
	if err != nil {
		return err
	}
	defer v.Close()
	x.drafts, err = v.DraftAll(ctx, values)
	return err
}

func (x *vaultEffect) seal(ctx context.Context, in *toolproto.VaultSetInput, expires time.Time) ([]*vault.Draft, error) {
	if in.From == 0 {
		err := x.sealAll(ctx, []vault.NewValue{{Ref: x.ref, Expires: expires}})
		return x.drafts, err
	}
	v, err := x.door.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	d, err := v.DraftAgain(ctx, x.ref, uint64(in.From), expires)
	return []*vault.Draft{d}, err
}

func (x *vaultEffect) addRecipient(in *toolproto.VaultAddRecipientInput) error {
	const op = "add recipient"
	want := vault.Recipient{Label: in.Label, Type: in.Type}
	if err := seal.CheckLabel(in.Label); err != nil {
		return usage("invalid_input", op, err)
	}
	if (in.ID != "") != (in.Type == seal.TypeHPKE) {
		return usage("invalid_input", op, errors.New("a public key has an id, and a passphrase none"))
	}
	if in.ID != "" {
		var err error
		if want.ID, err = canon.ParseDigest(in.ID); err != nil {
			return usage("invalid_input", op, errors.New("id: want sha256:HEX"))
		}
	}
	x.do = func(ctx context.Context, v *vault.Vault, _ *VaultDone) error {
		b, err := besideOf(ctx, x.name)
		if err != nil {
			return err
		}
		if b.Recipient == nil {
			return usage("invalid_input", op, errors.New("none comes with the call"))
		}
		return v.AddRecipient(ctx, b.Recipient, want)
	}
	return nil
}

// export names references and versions as they are now, so that the decision is about those.
func (x *vaultEffect) export(ctx context.Context, in *toolproto.VaultExportInput) error {
	to, err := vault.ParseExportRecipient(in.To)
	if err != nil {
		return err
	}
	if len(in.Versions) == 0 {
		if err := x.newest(ctx, in); err != nil {
			return err
		}
	}
	if len(in.Refs) != len(in.Versions) {
		return usage("invalid_input", "find version", fmt.Errorf("%d references with %d versions", len(in.Refs), len(in.Versions)))
	}
	var items []vault.Item
	seen := make(map[vault.Ref]bool)
	for i, s := range in.Refs {
		r, err := vault.ParseRef(s)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(in.Versions[i], 10, 63)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != in.Versions[i] || seen[r] {
			return usage("invalid_input", "find version", fmt.Errorf("%q of %s: no number of a version, or the secret comes twice", in.Versions[i], r))
		}
		seen[r] = true
		items = append(items, vault.Item{Ref: r, Version: n})
	}
	x.do = func(ctx context.Context, v *vault.Vault, done *VaultDone) (err error) {
		done.File, done.List, err = v.Export(ctx, to, items)
		return err
	}
	return nil
}

// newest fills in the newest versions, and the references if there are none.
func (x *vaultEffect) newest(ctx context.Context, in *toolproto.VaultExportInput) error {
	for _, s := range in.Refs { // before the vault is opened
		if _, err := vault.ParseRef(s); err != nil {
			return err
		}
	}
	v, err := x.door.Open(ctx)
	if err != nil {
		return err
	}
	defer v.Close()
	list, err := v.List(ctx)
	if err != nil {
		return err
	}
	if len(in.Refs) == 0 {
		for _, i := range list {
			if !i.Expired() {
				in.Refs = append(in.Refs, i.Ref.String())
			}
		}
		if n := len(in.Refs); n == 0 || n > vault.MaxExport {
			return usage("invalid_input", "find version", fmt.Errorf("%d secrets to export, want 1 to %d", n, vault.MaxExport))
		}
	}
	newest := make(map[string]uint64, len(list))
	for _, i := range list {
		newest[i.Ref.String()] = i.Version
	}
	for _, s := range in.Refs {
		n, ok := newest[s]
		if !ok {
			return fault.New(fault.NotFound, "not_found", fmt.Sprintf("find secret %q", s), errors.New("there is none"))
		}
		in.Versions = append(in.Versions, strconv.FormatUint(n, 10))
	}
	return nil
}

// Begin implements kernel.Effect.
func (x *vaultEffect) Begin(ctx context.Context) error {
	b, err := besideOf(ctx, x.name)
	if err != nil {
		return err
	}
	x.tell = b.Done
	v, err := x.door.Open(ctx)
	if err != nil {
		return err
	}
	defer v.Close()
	return x.do(ctx, v, &x.done)
}

// End implements kernel.Effect.
func (x *vaultEffect) End(ran bool, exit int) {
	if ran && toolproto.Status(exit) == toolproto.Done {
		x.tell(x.done)
		x.done = VaultDone{}
	}
}

// Close implements kernel.Effect. A secret that nobody got is gone.
func (x *vaultEffect) Close() { x.done.Secret.Wipe() }
