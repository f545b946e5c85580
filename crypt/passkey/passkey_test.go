package passkey_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"palyra/crypt/passkey"
	"palyra/crypt/passkey/passkeytest"
)

var (
	site  = passkey.Site{RP: "localhost", Origin: "http://localhost:7142"}
	other = passkey.Site{RP: "palyra.example", Origin: "https://palyra.example"}
)

// refused holds that an error is there, and says why.
func refused(t *testing.T, what string, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("%s: %v, want an error with %q", what, err, why)
	}
}

func TestSites(t *testing.T) {
	for address, want := range map[string]passkey.Site{
		"http://localhost:7142":           site,
		"https://palyra.example:443":      other,
		"https://palyra.example:8443":     {RP: "palyra.example", Origin: "https://palyra.example:8443"},
		"https://palyra.example/console/": other,
	} {
		if got, err := passkey.SiteOf(address); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", address, got, err, want)
		}
	}
	for _, address := range []string{"http://127.0.0.1:7142", "https://[::1]:7142", "https://192.0.2.7", "http://palyra.example", "", "://"} {
		if got, err := passkey.SiteOf(address); err == nil {
			t.Errorf("%s: %+v", address, got)
		}
	}
}

func TestRegister(t *testing.T) {
	challenge := []byte("a challenge of this test's own")
	ok := passkeytest.New(t, site)
	c, err := passkey.Register(site, challenge, ok.Register(challenge))
	if err != nil || !bytes.Equal(c.ID, ok.ID) || !bytes.Equal(c.Key, ok.SPKI()) {
		t.Fatalf("%+v, %v", c, err)
	}
	for what, x := range map[string]struct {
		key  func(*passkeytest.Key)
		made func(*passkey.Registration)
		why  string
	}{
		"another host":                {key: func(k *passkeytest.Key) { k.Site.RP = other.RP }, why: "for another host"},
		"another origin":              {key: func(k *passkeytest.Key) { k.Site.Origin = "http://localhost:7143" }, why: "of origin"},
		"nobody there":                {key: func(k *passkeytest.Key) { k.Flags = 1 << 2 }, why: "no person was there"},
		"nobody verified":             {key: func(k *passkeytest.Key) { k.Flags = 1 << 0 }, why: "didn't verify"},
		"an impossible backup":        {key: func(k *passkeytest.Key) { k.Flags |= 1 << 4 }, why: "can't be"},
		"a long id":                   {key: func(k *passkeytest.Key) { k.ID = make([]byte, passkey.MaxID+1) }, why: "too long"},
		"no id":                       {key: func(k *passkeytest.Key) { k.ID = nil }, why: "none"},
		"a frame":                     {key: func(k *passkeytest.Key) { k.Client = strings.Replace(k.Client, "false", "true", 1) }, why: "in a frame"},
		"a frame's page":              {key: func(k *passkeytest.Key) { k.Client = strings.Replace(k.Client, "}", `,"topOrigin":"https://evil"}`, 1) }, why: "in a frame"},
		"a member twice":              {key: func(k *passkeytest.Key) { k.Client = strings.Replace(k.Client, "}", `,"origin":"https://evil"}`, 1) }, why: "no JSON"},
		"a signature's":               {made: func(r *passkey.Registration) { r.Client = ok.Sign(challenge).Client }, why: "of type"},
		"another challenge":           {made: func(r *passkey.Registration) { r.Client = ok.Register([]byte("another")).Client }, why: "another challenge"},
		"another id":                  {made: func(r *passkey.Registration) { r.ID = []byte("another") }, why: "another credential"},
		"another key":                 {made: func(r *passkey.Registration) { r.Key = passkeytest.New(t, site).SPKI() }, why: "another key"},
		"a key of another curve":      {made: func(r *passkey.Registration) { r.Key = spki(t, elliptic.P384()) }, why: "P-256"},
		"a key with more":             {made: func(r *passkey.Registration) { r.Key = append(r.Key, 0) }, why: "P-256"},
		"data with more":              {made: func(r *passkey.Registration) { r.Data = append(r.Data, 0) }, why: "don't end"},
		"data with less":              {made: func(r *passkey.Registration) { r.Data = r.Data[:len(r.Data)-1] }, why: "another key"},
		"data without a credential":   {made: func(r *passkey.Registration) { r.Data = ok.Sign(challenge).Data }, why: "another credential"},
		"data with an id that's long": {made: func(r *passkey.Registration) { r.Data[37+16] = 0xff }, why: "another length"},
		"long client data":            {made: func(r *passkey.Registration) { r.Client = append(r.Client, make([]byte, 1024)...) }, why: "more than"},
	} {
		k := passkeytest.New(t, site)
		if x.key != nil {
			x.key(k)
		}
		r := k.Register(challenge)
		if x.made != nil {
			r = ok.Register(challenge)
			x.made(&r)
		}
		_, err := passkey.Register(site, challenge, r)
		refused(t, what, err, x.why)
	}
}

func spki(t *testing.T, curve elliptic.Curve) []byte {
	t.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVerify(t *testing.T) {
	challenge := []byte("another challenge of this test's own")
	for what, x := range map[string]struct {
		key  func(*passkeytest.Key)
		made func(*passkey.Assertion)
		why  string
	}{
		"another host":                  {key: func(k *passkeytest.Key) { k.Site.RP = other.RP }, why: "for another host"},
		"another origin":                {key: func(k *passkeytest.Key) { k.Site.Origin = "https://localhost:7142" }, why: "of origin"},
		"nobody there":                  {key: func(k *passkeytest.Key) { k.Flags = 1 << 2 }, why: "no person was there"},
		"nobody verified":               {key: func(k *passkeytest.Key) { k.Flags = 1 << 0 }, why: "didn't verify"},
		"a frame":                       {key: func(k *passkeytest.Key) { k.Client = strings.Replace(k.Client, "false", "true", 1) }, why: "in a frame"},
		"another id":                    {key: func(k *passkeytest.Key) { k.ID = []byte("another") }, why: "another credential's"},
		"another key":                   {key: func(k *passkeytest.Key) { k.Private = passkeytest.New(t, site).Private }, why: "isn't the passkey's"},
		"a credential's data":           {made: func(a *passkey.Assertion) { a.Data = passkeytest.New(t, site).Register(challenge).Data }, why: "no signature's"},
		"data with more":                {made: func(a *passkey.Assertion) { a.Data = append(a.Data, 0) }, why: "no signature's"},
		"another count":                 {made: func(a *passkey.Assertion) { a.Data[36]++ }, why: "isn't the passkey's"},
		"a registration's client data":  {made: func(a *passkey.Assertion) { a.Client = passkeytest.New(t, site).Register(challenge).Client }, why: "of type"},
		"client data with a blank more": {made: func(a *passkey.Assertion) { a.Client = append(a.Client, ' ') }, why: "isn't the passkey's"},
		"no signature":                  {made: func(a *passkey.Assertion) { a.Signature = nil }, why: "isn't the passkey's"},
		"another challenge":             {made: func(a *passkey.Assertion) { a.Client = bytes.Replace(a.Client, []byte("YW5v"), []byte("YW5w"), 1) }, why: "another challenge"},
	} {
		k := passkeytest.New(t, site)
		c := &passkey.Credential{ID: k.ID, Key: k.SPKI()}
		if _, err := passkey.Verify(site, challenge, c, k.Sign(challenge)); err != nil {
			t.Fatalf("control: %v", err)
		}
		if x.key != nil {
			x.key(k)
		}
		a := k.Sign(challenge)
		if x.made != nil {
			x.made(&a)
		}
		_, err := passkey.Verify(site, challenge, c, a)
		refused(t, what, err, x.why)
	}
}

// TestCount: a count that doesn't grow shows a copy; synced passkeys have none.
func TestCount(t *testing.T) {
	k := passkeytest.New(t, site)
	challenge := []byte("x")
	for _, x := range []struct {
		last, now uint32
		ok        bool
	}{{0, 0, true}, {0, 1, true}, {7, 8, true}, {7, 7, false}, {7, 6, false}, {7, 0, false}} {
		k.Count = x.now
		n, err := passkey.Verify(site, challenge, &passkey.Credential{ID: k.ID, Key: k.SPKI(), Count: x.last}, k.Sign(challenge))
		if (err == nil) != x.ok || errors.Is(err, passkey.ErrCount) == x.ok || err == nil && n != x.now {
			t.Errorf("after %d, %d: %d, %v", x.last, x.now, n, err)
		}
	}
}

func TestChallenges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := passkey.NewChallenges()
		b := c.New("answer", "tok_1")
		for what, words := range map[string][]string{"another purpose": {"enter", "tok_1"}, "another session": {"answer", "tok_2"}, "words put otherwise": {"answert", "ok_1"}, "none": nil} {
			if c.Spend(b, words...) == nil {
				t.Errorf("good for %s", what)
			}
		}
		if passkey.NewChallenges().Spend(b, "answer", "tok_1") == nil {
			t.Error("good for another daemon")
		}
		for i := range b {
			bad := bytes.Clone(b)
			bad[i] ^= 1
			if c.Spend(bad, "answer", "tok_1") == nil {
				t.Fatalf("good with another byte %d", i)
			}
		}
		if c.Spend(nil) == nil || c.Spend(b[:24], "answer", "tok_1") == nil {
			t.Error("good when cut")
		}
		if err := c.Spend(b, "answer", "tok_1"); err != nil {
			t.Fatal(err)
		}
		if c.Spend(b, "answer", "tok_1") == nil {
			t.Error("good twice")
		}
		b = c.New("answer")
		<-time.After(passkey.ChallengeTime)
		if err := c.Spend(b, "answer"); err != nil {
			t.Errorf("at its end: %v", err)
		}
		b = c.New("answer")
		<-time.After(passkey.ChallengeTime + time.Nanosecond)
		if c.Spend(b, "answer") == nil {
			t.Error("good after its end")
		}
	})
}

// FuzzRegister: whatever is accepted has the challenge, the origin and the key that it says.
func FuzzRegister(f *testing.F) {
	k := passkeytest.New(f, site)
	challenge := []byte("challenge")
	r := k.Register(challenge)
	f.Add(r.ID, r.Key, r.Data, r.Client)
	a := k.Sign(challenge)
	f.Add(a.ID, r.Key, a.Data, a.Client)
	f.Fuzz(func(t *testing.T, id, key, data, client []byte) {
		c, err := passkey.Register(site, challenge, passkey.Registration{ID: id, Key: key, Data: data, Client: client})
		if err == nil && (!bytes.Equal(c.ID, id) || !bytes.Contains(data, id)) {
			t.Errorf("%x is taken with %x, %q", id, data, client)
		}
		_, _ = passkey.Verify(site, challenge, &passkey.Credential{ID: id, Key: key}, passkey.Assertion{ID: id, Data: data, Client: client, Signature: a.Signature})
	})
}
