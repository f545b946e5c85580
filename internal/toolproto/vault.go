package toolproto

import "strconv"

// The names of the tools for secrets.
const (
	VaultGet    = "vault.get"
	VaultList   = "vault.list"
	VaultSet    = "vault.set"
	VaultRemove = "vault.remove"
	VaultRotate = "vault.rotate"

	VaultImport       = "vault.import"
	VaultExport       = "vault.export"
	VaultAddRecipient = "vault.add_recipient"
)

// VaultGetInput is the input of vault.get.
type VaultGetInput struct {
	Ref     string `json:"ref" tool:"required,min=1,max=512" doc:"vault://SCOPE/KEY"`
	Version int64  `json:"version,omitempty" doc:"default: the newest one"`
}

// Brief says which version is revealed.
func (in *VaultGetInput) Brief() []string {
	return []string{in.Ref, "version=" + strconv.FormatInt(in.Version, 10)}
}

// VaultListInput is the input of vault.list.
type VaultListInput struct {
	Ref string `json:"ref,omitempty" tool:"max=512" doc:"vault://SCOPE/KEY, whose versions are listed; default: the newest version of every secret"`
}

// Brief names the secret, if it is one.
func (in *VaultListInput) Brief() []string { return optional(in.Ref) }

// VaultSetInput is the input of vault.set. The value is in it by the digest of its sealed record,
// which says nothing of it: the record's key is random.
type VaultSetInput struct {
	Ref     string `json:"ref" tool:"required,min=1,max=512" doc:"vault://SCOPE/KEY"`
	From    int64  `json:"from,omitempty" doc:"an older version, whose value becomes the newest again"`
	Expires string `json:"expires,omitempty" tool:"max=64" doc:"time in RFC 3339 from which on the version isn't given out"`
	Version int64  `json:"version,omitempty" doc:"number of the new version, with record; default: the next one"`
	Record  string `json:"record,omitempty" tool:"max=71" doc:"digest of the sealed value, sha256:HEX; default: the caller's value is sealed now. Only the gate's own is ever stored"`
}

// Brief says what is set: which version, sealed as which record.
func (in *VaultSetInput) Brief() []string {
	b := []string{in.Ref, "version=" + strconv.FormatInt(in.Version, 10), "record=" + in.Record}
	if in.From != 0 {
		b = append(b, "from="+strconv.FormatInt(in.From, 10))
	}
	if in.Expires != "" {
		b = append(b, "expires="+in.Expires)
	}
	return b
}

// VaultRemoveInput is the input of vault.remove.
type VaultRemoveInput struct {
	Ref string `json:"ref" tool:"required,min=1,max=512" doc:"vault://SCOPE/KEY"`
}

// Brief names the secret.
func (in *VaultRemoveInput) Brief() []string { return []string{in.Ref} }

// VaultRotateInput is the input of vault.rotate.
type VaultRotateInput struct {
	Drop   []string `json:"drop,omitempty" tool:"max=16,maxlen=64" doc:"labels of recipients that the new key isn't wrapped for"`
	Values bool     `json:"values,omitempty" doc:"give each value a new key, too"`
}

// Brief names the dropped recipients.
func (in *VaultRotateInput) Brief() []string {
	var b []string
	if in.Values {
		b = append(b, "values")
	}
	for _, label := range in.Drop {
		b = append(b, "drop="+label)
	}
	return b
}

// VaultAddRecipientInput is the input of vault.add_recipient. A public key is in it by its digest,
// a passphrase not at all.
type VaultAddRecipientInput struct {
	Label string `json:"label" tool:"required,min=1,max=64" doc:"the operator's word for the recipient: a-z, 0-9 and -"`
	Type  string `json:"type" tool:"required,enum=hpke-mlkem768-x25519|argon2id" doc:"a public key, or a passphrase"`
	ID    string `json:"id,omitempty" tool:"max=71" doc:"digest of the public key, sha256:HEX"`
}

// Brief says who is added.
func (in *VaultAddRecipientInput) Brief() []string {
	b := []string{"label=" + in.Label, "type=" + in.Type}
	if in.ID != "" {
		b = append(b, "id="+in.ID)
	}
	return b
}

// VaultExportInput is the input of vault.export.
type VaultExportInput struct {
	To       string   `json:"to" tool:"required,min=1,max=2048" doc:"recipient of age, age1…"`
	Refs     []string `json:"refs,omitempty" tool:"max=256,maxlen=512" doc:"each vault://SCOPE/KEY; default: every secret that hasn't expired"`
	Versions []string `json:"versions,omitempty" tool:"max=256,maxlen=20" doc:"of each reference, in their order; default: the newest ones"`
}

// Brief says who can read the export, and which versions are in it.
func (in *VaultExportInput) Brief() []string {
	b := []string{"to=" + in.To}
	for i, ref := range in.Refs {
		b = append(b, ref)
		if i < len(in.Versions) {
			b = append(b, "version="+in.Versions[i])
		}
	}
	return b
}

// VaultImportInput is the input of vault.import. The values come beside it.
type VaultImportInput struct {
	Refs     []string `json:"refs" tool:"required,min=1,max=1000,maxlen=512" doc:"each vault://SCOPE/KEY"`
	Expires  []string `json:"expires,omitempty" tool:"max=1000,maxlen=64" doc:"for each reference, in their order, a time in RFC 3339 from which on the version isn't given out, or never; default: none expires"`
	Versions []string `json:"versions,omitempty" tool:"max=1000,maxlen=20" doc:"for each reference the number of the new version, with records; default: the next ones"`
	Records  []string `json:"records,omitempty" tool:"max=1000,maxlen=71" doc:"for each reference the digest of the sealed value, sha256:HEX; default: the caller's values are sealed now. Only the gate's own are ever stored"`
}

// Brief says what is set: which versions, sealed as which records.
func (in *VaultImportInput) Brief() []string {
	var b []string
	for i, ref := range in.Refs {
		b = append(b, ref)
		if i < len(in.Versions) && i < len(in.Records) {
			b = append(b, "version="+in.Versions[i], "record="+in.Records[i])
		}
		if i < len(in.Expires) && in.Expires[i] != "never" {
			b = append(b, "expires="+in.Expires[i])
		}
	}
	return b
}

// VaultResult is the result of each: the program has the words alone.
type VaultResult struct {
	Done bool `json:"done"`
}

func optional(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
