package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Files of a rotation of the certificate authority. DATE is that of the rotation.
//
//	ca-DATE.crt nodes-ca-DATE.crt   retired authorities; what they have signed is accepted as long as the file exists
//	pods-ca-DATE.crt                a retired authority of pods, which is published as long as the file exists
//	cross-ca-DATE.crt               the next authority, signed by the retired one, for clients that trust only that
//	next-ca.crt next-ca.key         the next authority before it becomes ca.crt and ca.key
const (
	crossPrefix = "cross-ca-"
	nextName    = "next-ca"
)

// RotateAuthority replaces the authority in the directory by one with a new key. The former one stays trusted, and it
// signs the new one: clients that trust only the former one accept certificates of the new one by that signature. The
// server must be restarted. RotateAuthority returns the files to remove when all clients trust the new authority.
// If it is interrupted, the next Open continues, or nothing has changed.
func RotateAuthority(dir string, now func() time.Time) (retired []string, err error) {
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	a, err := Open(dir, now)
	if err != nil {
		return nil, err
	}
	nodes, err := a.NodeServingAuthority()
	if err != nil {
		return nil, err
	}
	pods, err := a.PodAuthority()
	if err != nil {
		return nil, err
	}
	date := now().UTC().Format(retiredKeyTimeFormat)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	next := &Authority{now: now, key: key}
	if err := next.selfSign(pkix.Name{CommonName: "berth-ca-" + date}); err != nil {
		return nil, err
	}
	cross, err := a.crossSign(next.cert)
	if err != nil {
		return nil, err
	}
	keyText, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{"nodes-ca-" + date, nodes.own}, {"pods-ca-" + date, pods.own}, {"ca-" + date, a.own},
		{crossPrefix + date, cross}, {nextName, next.own}} {
		if err := writeFile(a.path(f.name+".crt"), f.text, 0o644); err != nil {
			return nil, err
		}
		if f.name != nextName {
			retired = append(retired, a.path(f.name+".crt"))
		}
	}
	// This file decides: Open continues the rotation if it exists.
	if err := writeFile(a.path(nextName+".key"), keyText, 0o600); err != nil {
		return nil, err
	}
	return retired, completeRotation(dir)
}

// crossSign signs the certificate of another authority.
func (a *Authority) crossSign(next *x509.Certificate) ([]byte, error) {
	template := authorityTemplate(next.Subject)
	template.NotBefore, template.NotAfter = next.NotBefore, next.NotAfter
	if a.cert.NotAfter.Before(template.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	text, err := sign(template, a.cert, next.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return text, nil
}

// completeRotation renames the files of the next authority, if there are any.
func completeRotation(dir string) error {
	path := func(name string) string { return filepath.Join(dir, name) }
	renameErr := os.Rename(path(nextName+".key"), path("ca.key"))
	if renameErr != nil && !errors.Is(renameErr, fs.ErrNotExist) {
		return fmt.Errorf("rotate certificate authority: %w", renameErr)
	}
	text, err := os.ReadFile(path(nextName + ".crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rotate certificate authority: %w", err)
	}
	cert, err := parseCertificate(text)
	if err != nil {
		return fmt.Errorf("rotate certificate authority: %s: %w", path(nextName+".crt"), err)
	}
	key, err := loadOrCreateKey(path("ca.key"))
	if err != nil {
		return err
	}
	if !key.PublicKey.Equal(cert.PublicKey) { // interrupted before its key was written
		return os.Remove(path(nextName + ".crt"))
	}
	if err := os.Rename(path(nextName+".crt"), path("ca.crt")); err != nil {
		return fmt.Errorf("rotate certificate authority: %w", err)
	}
	return syncDir(dir)
}

// loadRetired loads the certificates of retired authorities with the name of this one, and the signatures of the
// former ones for the new ones.
func (a *Authority) loadRetired() error {
	load := func(pattern string, each func(cert *x509.Certificate, text []byte)) error {
		files, err := filepath.Glob(a.path(pattern))
		if err != nil {
			return fmt.Errorf("retired certificate authorities: %w", err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("retired certificate authority: %w", err)
			}
			cert, err := parseCertificate(text)
			if err != nil {
				return fmt.Errorf("retired certificate authority %s: %w", path, err)
			}
			each(cert, text)
		}
		return nil
	}
	a.retired, a.former, a.cross = nil, nil, nil
	err := load(a.name+"-*.crt", func(cert *x509.Certificate, text []byte) {
		if !a.cert.Equal(cert) { // of an interrupted rotation
			a.retired, a.former = append(a.retired, cert), append(a.former, text...)
		}
	})
	return errors.Join(err, load(crossPrefix+"*.crt", func(_ *x509.Certificate, text []byte) {
		a.cross = append(a.cross, text...)
	}))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
