package apiclient

import "net/netip"

// ServingCertificate is the certificate that the node's own server shows, issued by the
// node's server and renewed in time. Run has to be called for it.
func (id *Identity) ServingCertificate(ips []netip.Addr) *Certificate {
	o := &id.opt
	c, warning := OpenCertificate(CertificateOptions{
		Dir: o.CertDir, Name: serverName, Request: NodeServingRequest(o.NodeName, ips), Log: o.Log, RenewalClient: id.self, BootstrapClient: id.self,
		Hint: "kubectl get csr shows whether it waits for somebody's approval",
	})
	if warning != nil {
		o.Log.Info("another certificate is asked for the node's own server", "reason", warning)
	}
	return c
}
