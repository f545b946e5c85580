package signal

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"strings"
)

// format is how an issuer writes its tokens: a prefix, and min to max bytes of a class.
type format struct {
	kind   string
	prefix string
	class  func(byte) bool
	min    int
	max    int
	// check looks at the token with its prefix; nil: it's mixed, as what is random is.
	check func(token []byte) bool
	// anywhere says that it needs no border: the check doesn't pass by chance.
	anywhere bool
}

// long is the length of the longest token that has none by its format.
const long = 512

func upper32(c byte) bool { return isUpper(c) || c >= '2' && c <= '7' }
func dotted(c byte) bool  { return isSafe(c) || c == '.' }
func dashed(c byte) bool  { return isAlnum(c) || c == '-' }

// formats are documented by the issuers, and collected by gitleaks, Nosey Parker and others. The
// checksum of GitHub's and npm's is the CRC-32 of what stands behind the prefix, in base 62:
// https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/
var formats = []format{
	{"github", "ghp_", isAlnum, 36, 251, crc62, true},
	{"github", "gho_", isAlnum, 36, 251, crc62, true},
	{"github", "ghu_", isAlnum, 36, 251, crc62, true},
	{"github", "ghs_", isAlnum, 36, 251, crc62, true},
	{"github", "ghr_", isAlnum, 36, 251, crc62, true},
	{"github", "github_pat_", isWord, 82, 82, nil, false},
	{"npm", "npm_", isAlnum, 36, 36, crc62, true},
	{"palyra", "palyra_", isWord, 93, 93, palyra, true},
	{"age", "AGE-SECRET-KEY-1", isAlnum, 58, 58, bech32, true},
	{"age", "AGE-SECRET-KEY-PQ-1", isAlnum, 58, 4096, bech32, true},
	{"aws", "AKIA", upper32, 16, 16, notExample, false},
	{"aws", "ASIA", upper32, 16, 16, notExample, false},
	{"anthropic", "sk-ant-", isSafe, 20, long, nil, false},
	{"openrouter", "sk-or-", isSafe, 20, long, nil, false},
	{"openai", "sk-", isSafe, 20, long, nil, false},
	{"slack", "xoxa-", dashed, 15, long, nil, false},
	{"slack", "xoxb-", dashed, 15, long, nil, false},
	{"slack", "xoxe-", dashed, 15, long, nil, false},
	{"slack", "xoxp-", dashed, 15, long, nil, false},
	{"slack", "xoxr-", dashed, 15, long, nil, false},
	{"slack", "xoxs-", dashed, 15, long, nil, false},
	{"slack", "xapp-", dashed, 15, long, nil, false},
	{"slack", "hooks.slack.com/services/", func(c byte) bool { return isAlnum(c) || c == '/' }, 40, 100, nil, false},
	{"gitlab", "glpat-", dotted, 20, long, nil, false},
	{"gitlab", "gldt-", dotted, 20, long, nil, false},
	{"gitlab", "glrt-", dotted, 20, long, nil, false},
	{"gitlab", "glptt-", dotted, 20, long, nil, false},
	{"gitlab", "glcbt-", dotted, 20, long, nil, false},
	{"gitlab", "glft-", dotted, 20, long, nil, false},
	{"gitlab", "glagent-", dotted, 20, long, nil, false},
	{"stripe", "sk_live_", isAlnum, 16, long, nil, false},
	{"stripe", "sk_test_", isAlnum, 16, long, nil, false},
	{"stripe", "rk_live_", isAlnum, 16, long, nil, false},
	{"stripe", "rk_test_", isAlnum, 16, long, nil, false},
	{"stripe", "whsec_", isBase64, 24, long, nil, false},
	{"google", "AIza", isSafe, 35, 35, nil, false},
	{"google", "GOCSPX-", isSafe, 28, 28, nil, false},
	{"google", "ya29.", dotted, 24, 2048, nil, false},
	{"huggingface", "hf_", isAlnum, 34, 34, nil, false},
	{"pypi", "pypi-AgE", isSafe, 50, long, nil, false},
	{"sendgrid", "SG.", dotted, 66, 66, func(t []byte) bool { return bytes.Count(t, []byte(".")) == 2 }, false},
	{"digitalocean", "dop_v1_", isHex, 64, 64, nil, false},
	{"digitalocean", "doo_v1_", isHex, 64, 64, nil, false},
	{"digitalocean", "dor_v1_", isHex, 64, 64, nil, false},
	{"docker", "dckr_pat_", isSafe, 20, long, nil, false},
	{"vault", "hvs.", isSafe, 20, long, nil, false},
	{"vault", "hvb.", isSafe, 20, long, nil, false},
	{"tailscale", "tskey-", dashed, 20, long, nil, false},
	{"shopify", "shpat_", isHex, 32, 32, nil, false},
	{"shopify", "shpss_", isHex, 32, 32, nil, false},
	{"groq", "gsk_", isAlnum, 40, 80, nil, false},
	{"xai", "xai-", isAlnum, 70, 100, nil, false},
	{"perplexity", "pplx-", isAlnum, 40, 80, nil, false},
	{"replicate", "r8_", isAlnum, 37, 37, nil, false},
	{"nvidia", "nvapi-", isSafe, 40, 100, nil, false},
	{"linear", "lin_api_", isAlnum, 32, 64, nil, false},
	{"grafana", "glsa_", isWord, 40, 44, nil, false},
	{"rubygems", "rubygems_", isHex, 48, 48, nil, false},
}

// byFirst has the formats by their first byte, longer prefixes first as the table has them.
var byFirst = func() (t [256][]*format) {
	for i := range formats {
		c := formats[i].prefix[0]
		t[c] = append(t[c], &formats[i])
	}
	return t
}()

// at returns the length of the token that begins at i, 0 if none does.
func (f *format) at(b []byte, i int, d *depth) int {
	if len(b)-i < len(f.prefix)+f.min || string(b[i:i+len(f.prefix)]) != f.prefix || !f.anywhere && !starts(b, i) || !d.may(i) {
		return 0
	}
	from := i + len(f.prefix)
	to := while(b, from, f.max, f.class)
	d.did(to)
	whole := to == len(b) || !f.class(b[to])
	if f.anywhere && f.check(b[i:min(len(b), from+f.min)]) { // what follows may be another word's
		return f.min + len(f.prefix)
	}
	if !whole {
		return 0
	}
	to -= len(b[from:to]) - len(bytes.TrimRight(b[from:to], ".-")) // of a sentence
	t := b[i:to]
	if len(t) < len(f.prefix)+f.min || placeholder(t[len(f.prefix):]) {
		return 0
	}
	if f.check == nil && !mixed(t[len(f.prefix):]) || f.check != nil && !f.check(t) {
		return 0
	}
	return len(t)
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// crc62 checks the last six bytes of a token.
func crc62(t []byte) bool {
	_, t, _ = bytes.Cut(t, []byte("_"))
	if len(t) < 7 {
		return false
	}
	body, sum := t[:len(t)-6], t[len(t)-6:]
	n := uint64(crc32.ChecksumIEEE(body))
	for i := 5; i >= 0; i-- {
		if sum[i] != base62[n%62] {
			return false
		}
		n /= 62
	}
	return n == 0
}

var base32lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// palyra checks a token of palyrad's API; package authz/access has the format.
func palyra(t []byte) bool {
	i := bytes.LastIndexByte(t, '_')
	sum, err := base32lower.DecodeString(string(t[i+1:]))
	return err == nil && len(sum) == 4 && binary.BigEndian.Uint32(sum) == crc32.ChecksumIEEE(t[:i])
}

func notExample(t []byte) bool { return !bytes.HasSuffix(t, []byte("EXAMPLE")) && mixed(t[4:]) }

const charset32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// bech32 checks a secret of age by the checksum of BIP 173.
func bech32(t []byte) bool {
	text := strings.ToLower(string(t))
	i := strings.LastIndexByte(text, '1')
	if i < 1 || len(text)-i < 8 {
		return false
	}
	sum := uint32(1)
	step := func(v uint32) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ v
		for j, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>j&1 == 1 {
				sum ^= g
			}
		}
	}
	for _, c := range []byte(text[:i]) {
		step(uint32(c >> 5))
	}
	step(0)
	for _, c := range []byte(text[:i]) {
		step(uint32(c & 31))
	}
	for _, c := range []byte(text[i+1:]) {
		v := strings.IndexByte(charset32, c)
		if v < 0 {
			return false
		}
		step(uint32(v))
	}
	return sum == 1
}

// jwt finds a JSON Web Token: three parts, or five, whose first is a header.
func (s *scanner) jwt(i int) {
	b := s.b
	if !bytes.HasPrefix(b[i:], []byte("eyJ")) || !starts(b, i) && (i == 0 || isSafe(b[i-1])) {
		return
	}
	dots := 0
	to := while(b, i, 16<<10, func(c byte) bool {
		if c == '.' {
			dots++
		}
		return dotted(c) && dots <= 5
	})
	text := bytes.TrimRight(b[i:to], ".-")
	parts := bytes.Split(text, []byte("."))
	if len(parts) != 3 && len(parts) != 5 {
		return
	}
	var head struct {
		Alg string `json:"alg"`
	}
	h, err := base64.RawURLEncoding.DecodeString(string(parts[0]))
	if err != nil || json.Unmarshal(h, &head) != nil || head.Alg == "" || len(parts[2]) < 8 {
		return
	}
	if len(parts) == 3 {
		if claims, err := base64.RawURLEncoding.DecodeString(string(parts[1])); err != nil || !json.Valid(claims) {
			return
		}
	}
	s.add("jwt", Critical, i, i+len(text), true)
}
