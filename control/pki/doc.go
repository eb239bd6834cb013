// Package pki is the control server's own certificate authority and all that
// is signed by it: files under DIR/pki, made at the first start, each renewed
// when a third of its time is left.
//
//	ca.crt ca.key            the authority, 10 years; its key stays when it is renewed
//	nodes-ca.crt             the authority of what nodes show; its key follows from ca.key
//	server.crt server.key    what clients see, 1 year, issued again for new addresses
//	node-client.crt .key     how the server shows itself to nodes (port 10250)
//	service-account.key      signs the tokens of service accounts
//	service-account-*.key    did so before; their tokens are good as long as the file is there
//	encryption.yaml          how secrets are sealed in the store
//
// Keys are ECDSA P-256, files of keys have mode 0600, and every file is replaced
// in one step. It starts no goroutine: whoever holds a Certificate calls Renew.
package pki
