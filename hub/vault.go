package hub

import "time"

// The operations of the vault. Each that reads or changes secrets makes one call of a tool for
// secrets, which policy decides, a person may be asked about, and a receipt attests. Values travel
// in bodies, over the unix socket and connections of paired devices alone.

// SecretInfo describes a version of a secret.
type SecretInfo struct {
	Ref     string     `json:"ref"` // vault://SCOPE/KEY
	Version uint64     `json:"version"`
	Size    int        `json:"size"`         // bytes of the value
	Created time.Time  `json:"created"`      //
	Expires *time.Time `json:"expires"`      // null: never
	By      string     `json:"by,omitempty"` // in lists: the principal who made the secret; absent: it isn't recorded
}

// VaultResult is what a call of a tool for secrets did. Run has its one step: how the call was
// decided, how it ended, and where its receipt is. The rest is empty unless it was executed.
type VaultResult struct {
	Run     Run          `json:"run"`
	Secrets []SecretInfo `json:"secrets"`         // what was stored, listed, revealed or exported
	Value   []byte       `json:"value,omitempty"` // what was revealed
	File    []byte       `json:"file,omitempty"`  // an export, for age
}

// SecretValue is a value for a secret.
type SecretValue struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Ref     string `json:"ref" doc:"vault://SCOPE/KEY"`
	Value   []byte `json:"value" doc:"1 to 65536 bytes"`
	Expires string `json:"expires,omitempty" doc:"time in RFC 3339 from which on the version isn't given out"`
}

// SecretVersion names a version of a secret.
type SecretVersion struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Ref     string `json:"ref" doc:"vault://SCOPE/KEY"`
	Version uint64 `json:"secret_version,omitempty" doc:"0: the newest"`
}

// SecretRollback names the version whose value is to be the newest again.
type SecretRollback struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Ref     string `json:"ref" doc:"vault://SCOPE/KEY"`
	Version uint64 `json:"secret_version" doc:"the older one"`
	Expires string `json:"expires,omitempty" doc:"time in RFC 3339 from which on the new version isn't given out; default: the older one's"`
}

// SecretQuery says which secrets are listed.
type SecretQuery struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Ref     string `json:"ref,omitempty" doc:"the versions of this one; default: the newest version of each"`
}

// SecretName names a secret.
type SecretName struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Ref     string `json:"ref" doc:"vault://SCOPE/KEY"`
}

// VaultRotation makes a new key for the vault.
type VaultRotation struct {
	Session string   `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Drop    []string `json:"drop,omitempty" doc:"labels of recipients that it isn't wrapped for"`
	Values  bool     `json:"values,omitempty" doc:"give each value a new key, too"`
}

// NewVaultRecipient is a public key that is to open the vault, too.
type NewVaultRecipient struct {
	Session   string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Label     string `json:"label" doc:"the operator's word for it: a-z, 0-9 and -"`
	Recipient string `json:"recipient" doc:"the line that palyra vault identity prints"`
}

// SecretImport has values for several secrets.
type SecretImport struct {
	Session string      `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Secrets []NewSecret `json:"secrets" doc:"1 to 1000"`
}

// NewSecret is one of an import.
type NewSecret struct {
	Ref     string `json:"ref" doc:"vault://SCOPE/KEY"`
	Value   []byte `json:"value" doc:"1 to 65536 bytes"`
	Expires string `json:"expires,omitempty" doc:"time in RFC 3339 from which on the version isn't given out"`
}

// SecretExport says what is exported, and for which reader.
type SecretExport struct {
	Session string   `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	To      string   `json:"to" doc:"recipient of age, age1…"`
	Refs    []string `json:"refs,omitempty" doc:"default: every secret that hasn't expired"`
}

// VaultState describes the vault as the journal knows it.
type VaultState struct {
	Vault      string           `json:"vault"` // its id
	Epoch      uint64           `json:"epoch"` // counts its states
	Recipients []VaultRecipient `json:"recipients"`
	OpenedBy   string           `json:"opened_by"` // label of the recipient that palyrad opened it as
	Versions   int              `json:"versions"`  // that were opened
	Stale      int              `json:"stale"`     // versions that wait for new keys, which the next changes give
}

// VaultRecipient is one that the vault's key is wrapped for.
type VaultRecipient struct {
	Label string `json:"label"`
	Type  string `json:"type"`
	ID    string `json:"id,omitempty"` // digest of the public key; a passphrase has none
}

// The vault.
var (
	SetSecret = define[SecretValue, VaultResult]("vault.setSecret", "POST /vault/set", "vault.manage",
		"Store a new version of a secret", Operation{Doc: vaultDoc, Effect: Begins})
	RollBackSecret = define[SecretRollback, VaultResult]("vault.rollBackSecret", "POST /vault/rollback", "vault.manage",
		"Make an older value of a secret the newest again", Operation{Doc: vaultDoc, Effect: Begins})
	// RevealSecret answers once: no key repeats it.
	RevealSecret = define[SecretVersion, VaultResult]("vault.revealSecret", "POST /vault/reveal", "vault.manage",
		"Reveal a secret", Operation{Doc: vaultDoc, Effect: Begins})
	// ListSecrets has no value in its result, so the console's pages may have it, too.
	ListSecrets = define[SecretQuery, VaultResult]("vault.listSecrets", "POST /vault/list", "vault.manage",
		"List secrets, or the versions of one, without values", Operation{Doc: vaultDoc, Effect: Begins})
	RemoveSecret = define[SecretName, VaultResult]("vault.removeSecret", "POST /vault/remove", "vault.manage",
		"Remove all versions of a secret", Operation{Doc: vaultDoc, Effect: Begins})
	RotateVault = define[VaultRotation, VaultResult]("vault.rotateVault", "POST /vault/rotate", "vault.manage",
		"Make a new key for the vault", Operation{Doc: vaultDoc, Effect: Begins})
	// AddVaultRecipient gives every secret to the holder of a key, for good.
	AddVaultRecipient = define[NewVaultRecipient, VaultResult]("vault.addVaultRecipient", "POST /vault/recipients", "vault.manage",
		"Have the vault open for one more public key", Operation{Doc: vaultDoc})
	ImportSecrets = define[SecretImport, VaultResult]("vault.importSecrets", "POST /vault/import", "vault.manage",
		"Store several secrets, all or none", Operation{Doc: vaultDoc, Effect: Begins, Body: 24 << 20})
	ExportSecrets = define[SecretExport, VaultResult]("vault.exportSecrets", "POST /vault/export", "vault.manage",
		"Export secrets for a recipient of age", Operation{Doc: vaultDoc, Effect: Begins})
	// VerifyVault and GetVault make no call: they give out no name of a secret, and no value.
	GetVault = define[None, VaultState]("vault.getVault", "GET /vault", "vault.manage",
		"Get the vault's state and its recipients")
	VerifyVault = define[None, VaultState]("vault.verifyVault", "POST /vault/verify", "vault.manage",
		"Open every version of every secret in memory, and compare with the journal", Operation{Effect: Keeps})
)

const vaultDoc = "One call of a tool for secrets. The answer waits for it, as that of a call does, and the client's leaving cancels it. " +
	"Refused unless it comes over the unix socket or from a paired device."

// vaultOperations returns those of the vault.
func vaultOperations() []*Operation {
	return []*Operation{SetSecret.Operation, RollBackSecret.Operation, RevealSecret.Operation, ListSecrets.Operation, RemoveSecret.Operation,
		RotateVault.Operation, AddVaultRecipient.Operation, ImportSecrets.Operation, ExportSecrets.Operation, GetVault.Operation, VerifyVault.Operation}
}
