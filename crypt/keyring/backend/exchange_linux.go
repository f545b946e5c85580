package backend

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"math/big"
)

// exchangeName is the one algorithm of the Secret Service API that encrypts values on the bus, and
// all keyrings have it. It keeps them out of logs of the bus and of the bus's own memory. It proves
// nothing about the other end and would not stop an attacker who changes messages; the bus, which
// is the user's, has to be trusted for that.
const exchangeName = "dh-ietf1024-sha256-aes128-cbc-pkcs7"

// oakley2 is the prime of the Second Oakley Group (RFC 2409 §6.2), whose generator is 2.
var oakley2, _ = new(big.Int).SetString("FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74"+
	"020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9"+
	"A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381FFFFFFFFFFFFFFFF", 16)

const oakleySize = 128 // bytes

type exchange struct{ private *big.Int }

func newExchange() (exchange, []byte) {
	b := make([]byte, oakleySize)
	_, _ = rand.Read(b) // never fails: crypto/rand
	e := exchange{new(big.Int).SetBytes(b)}
	clear(b)
	return e, new(big.Int).Exp(big.NewInt(2), e.private, oakley2).FillBytes(make([]byte, oakleySize))
}

// key derives the key of the session from the other public key.
func (e exchange) key(public []byte) ([]byte, error) {
	y := new(big.Int).SetBytes(public)
	if len(public) > oakleySize || y.Cmp(big.NewInt(1)) <= 0 || y.Cmp(new(big.Int).Sub(oakley2, big.NewInt(1))) >= 0 {
		return nil, errors.New("a public key out of bounds")
	}
	shared := y.Exp(y, e.private, oakley2).FillBytes(make([]byte, oakleySize))
	defer clear(shared)
	return hkdf.Key(sha256.New, shared, nil, "", aes.BlockSize)
}

// encrypt is AES-CBC with the padding of PKCS #7.
func encrypt(key, value []byte) (iv, sealed []byte) {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("backend: internal error: " + err.Error())
	}
	iv = make([]byte, aes.BlockSize)
	_, _ = rand.Read(iv) // never fails: crypto/rand
	n := aes.BlockSize - len(value)%aes.BlockSize
	sealed = append(bytes.Clone(value), bytes.Repeat([]byte{byte(n)}, n)...)
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(sealed, sealed)
	return iv, sealed
}

func decrypt(key, iv, sealed []byte) ([]byte, error) {
	if len(iv) != aes.BlockSize || len(sealed) == 0 || len(sealed)%aes.BlockSize != 0 {
		return nil, errors.New("no AES-CBC value")
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("backend: internal error: " + err.Error())
	}
	value := make([]byte, len(sealed))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(value, sealed)
	n := int(value[len(value)-1])
	if n == 0 || n > aes.BlockSize || !bytes.Equal(value[len(value)-n:], bytes.Repeat([]byte{byte(n)}, n)) {
		clear(value)
		return nil, errors.New("no padding")
	}
	return value[:len(value)-n], nil
}
