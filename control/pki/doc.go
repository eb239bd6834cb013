// Package pki is the certificate authority of the control server and everything it signs: files in
// DIR/pki, which are created at the first start. Certificates are renewed when a third of their
// validity is left.
//
//	ca.crt ca.key            the cluster's authority, 10 years; a renewal keeps its key, a rotation does not
//	nodes-ca.crt             the authority for kubelet serving certificates; its key is derived from ca.key
//	pods-ca.crt              the authority for certificates of pods; its key is derived from ca.key
//	server.crt server.key    serving certificate of the API server, 1 year, issued again for new addresses
//	node-client.crt .key     client certificate for requests to kubelets (port 10250)
//	front-proxy-ca.crt       the authority for front-proxy-client.crt; its key is derived from ca.key
//	front-proxy-client.*     client certificate for requests to extension API servers
//	service-account.key      signs service account tokens
//	service-account-*.key    retired keys; their tokens are accepted as long as the file exists
//	encryption.yaml          configuration of encryption at rest
//	ca-*.crt nodes-ca-*.crt  retired authorities; what they have signed is accepted as long as the file exists
//	pods-ca-*.crt            retired authorities of pods, which are published as long as the file exists
//	cross-ca-*.crt           signatures of retired authorities for their successors
//
// Keys are ECDSA P-256. Key files have mode 0600. Files are replaced atomically. The package starts
// no goroutines: the owner of a Certificate calls Renew.
package pki
