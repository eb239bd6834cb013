package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/golang-jwt/jwt/v5"
)

// Keyring holds the signing key of service account tokens and all public keys that verify them,
// including that of the signing key. This allows key rotation without invalidating tokens. It is
// immutable.
type Keyring struct {
	signer crypto.Signer
	kid    string
	method jwt.SigningMethod
	public []keyringKey
}

type keyringKey struct {
	id     string
	method jwt.SigningMethod
	key    crypto.PublicKey
}

// NewKeyring returns a keyring with a signing key and additional public keys for verification. Keys
// are ECDSA P-256 (ES256) or RSA with at least 2048 bits (RS256).
func NewKeyring(sign crypto.Signer, verify ...crypto.PublicKey) (*Keyring, error) {
	if sign == nil {
		return nil, errors.New("keyring without signing key")
	}
	r := &Keyring{signer: sign}
	for _, k := range append([]crypto.PublicKey{sign.Public()}, verify...) {
		one, err := newKeyringKey(k)
		if err != nil {
			return nil, fmt.Errorf("service account key: %w", err)
		}
		if !slices.ContainsFunc(r.public, func(have keyringKey) bool { return have.id == one.id }) {
			r.public = append(r.public, one)
		}
	}
	r.kid, r.method = r.public[0].id, r.public[0].method
	return r, nil
}

func newKeyringKey(k crypto.PublicKey) (keyringKey, error) {
	var method jwt.SigningMethod
	switch k := k.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return keyringKey{}, fmt.Errorf("unsupported curve %s, only P-256 is supported", k.Curve.Params().Name)
		}
		method = jwt.SigningMethodES256
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return keyringKey{}, fmt.Errorf("RSA key of %d bits, at least 2048 are required", k.N.BitLen())
		}
		method = jwt.SigningMethodRS256
	default:
		return keyringKey{}, fmt.Errorf("unsupported type %T, only ECDSA P-256 and RSA are supported", k)
	}
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return keyringKey{}, err
	}
	sum := sha256.Sum256(der)
	return keyringKey{base64.RawURLEncoding.EncodeToString(sum[:]), method, k}, nil
}

// verificationKey returns the key for the token's "kid" header. All tokens of this server have one.
func (r *Keyring) verificationKey(t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	for _, k := range r.public {
		if k.id == kid && k.method.Alg() == t.Method.Alg() {
			return k.key, nil
		}
	}
	return nil, errors.New("unknown key")
}

// webKey is one key of a JSON Web Key Set (RFC 7517).
type webKey struct {
	Use string `json:"use"`
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Alg string `json:"alg"`
	Crv string `json:"crv,omitempty"`
	X   string `json:"x,omitempty"`
	Y   string `json:"y,omitempty"`
	N   string `json:"n,omitempty"`
	E   string `json:"e,omitempty"`
}

func (r *Keyring) webKeys() (out []webKey, err error) {
	b64 := base64.RawURLEncoding.EncodeToString
	for _, k := range r.public {
		w := webKey{Use: "sig", Kid: k.id, Alg: k.method.Alg()}
		switch key := k.key.(type) {
		case *ecdsa.PublicKey:
			point, err := key.Bytes() // 0x04, 32 bytes of X, 32 bytes of Y
			if err != nil {
				return nil, err
			}
			w.Kty, w.Crv, w.X, w.Y = "EC", "P-256", b64(point[1:33]), b64(point[33:])
		case *rsa.PublicKey:
			w.Kty, w.N, w.E = "RSA", b64(key.N.Bytes()), b64(big.NewInt(int64(key.E)).Bytes())
		}
		out = append(out, w)
	}
	return out, nil
}
