package cis

import (
	"slices"
	"strings"
)

// Control is a recommendation of the benchmark.
type Control struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Assessment is how the benchmark assesses the control: automated or manual.
	Assessment string `json:"assessment"`
}

// Section returns the number of the control's section, such as 1.2.
func (c Control) Section() string {
	if strings.Count(c.ID, ".") < 2 {
		section, _, _ := strings.Cut(c.ID, ".")
		return section
	}
	return c.ID[:strings.LastIndex(c.ID, ".")]
}

// Controls returns the controls of the chapters, such as 1 and 5, in their order.
func Controls(chapters ...string) (out []Control) {
	for _, c := range catalog {
		if chapter, _, _ := strings.Cut(c.ID, "."); slices.Contains(chapters, chapter) {
			out = append(out, c)
		}
	}
	return out
}

var sectionTitles = map[string]string{
	"1.1": "Control Plane Node Configuration Files",
	"1.2": "API Server",
	"1.3": "Controller Manager",
	"1.4": "Scheduler",
	"2":   "Etcd Node Configuration",
	"3.1": "Authentication and Authorization",
	"3.2": "Logging",
	"4.1": "Worker Node Configuration Files",
	"4.2": "Kubelet",
	"4.3": "kube-proxy",
	"5.1": "RBAC and Service Accounts",
	"5.2": "Pod Security Standards",
	"5.3": "Network Policies and CNI",
	"5.4": "Secrets Management",
	"5.5": "Extensible Admission Control",
	"5.6": "General Policies",
}

// Assessments of controls.
const (
	automated = "automated"
	manual    = "manual"
)

var catalog = []Control{
	{"1.1.1", "Ensure that the API server pod specification file permissions are set " +
		"to 600 or more restrictive", automated},
	{"1.1.2", "Ensure that the API server pod specification file ownership is set to root:root", automated},
	{"1.1.3", "Ensure that the controller manager pod specification file permissions " +
		"are set to 600 or more restrictive", automated},
	{"1.1.4", "Ensure that the controller manager pod specification file ownership is set to root:root", automated},
	{"1.1.5", "Ensure that the scheduler pod specification file permissions are set " +
		"to 600 or more restrictive", automated},
	{"1.1.6", "Ensure that the scheduler pod specification file ownership is set to root:root", automated},
	{"1.1.7", "Ensure that the etcd pod specification file permissions are set to 600 or more restrictive", automated},
	{"1.1.8", "Ensure that the etcd pod specification file ownership is set to root:root", automated},
	{"1.1.9", "Ensure that the Container Network Interface file permissions are set " +
		"to 600 or more restrictive", manual},
	{"1.1.10", "Ensure that the Container Network Interface file ownership is set to root:root", manual},
	{"1.1.11", "Ensure that the etcd data directory permissions are set to 700 or more restrictive", automated},
	{"1.1.12", "Ensure that the etcd data directory ownership is set to etcd:etcd", automated},
	{"1.1.13", "Ensure that the default administrative credential file permissions are set to 600", automated},
	{"1.1.14", "Ensure that the default administrative credential file ownership is set to root:root", automated},
	{"1.1.15", "Ensure that the scheduler.conf file permissions are set to 600 or more restrictive", automated},
	{"1.1.16", "Ensure that the scheduler.conf file ownership is set to root:root", automated},
	{"1.1.17", "Ensure that the controller-manager.conf file permissions are set to " +
		"600 or more restrictive", automated},
	{"1.1.18", "Ensure that the controller-manager.conf file ownership is set to root:root", automated},
	{"1.1.19", "Ensure that the Kubernetes PKI directory and file ownership is set to root:root", automated},
	{"1.1.20", "Ensure that the Kubernetes PKI certificate file permissions are set " +
		"to 644 or more restrictive", manual},
	{"1.1.21", "Ensure that the Kubernetes PKI key file permissions are set to 600", manual},
	{"1.2.1", "Ensure that the --anonymous-auth argument is set to false", manual},
	{"1.2.2", "Ensure that the --token-auth-file parameter is not set", automated},
	{"1.2.3", "Ensure that the --DenyServiceExternalIPs is set", manual},
	{"1.2.4", "Ensure that the --kubelet-client-certificate and --kubelet-client-key " +
		"arguments are set as appropriate", automated},
	{"1.2.5", "Ensure that the --kubelet-certificate-authority argument is set as appropriate", automated},
	{"1.2.6", "Ensure that the --authorization-mode argument is not set to AlwaysAllow", automated},
	{"1.2.7", "Ensure that the --authorization-mode argument includes Node", automated},
	{"1.2.8", "Ensure that the --authorization-mode argument includes RBAC", automated},
	{"1.2.9", "Ensure that the admission control plugin EventRateLimit is set", manual},
	{"1.2.10", "Ensure that the admission control plugin AlwaysAdmit is not set", automated},
	{"1.2.11", "Ensure that the admission control plugin AlwaysPullImages is set", manual},
	{"1.2.12", "Ensure that the admission control plugin ServiceAccount is set", automated},
	{"1.2.13", "Ensure that the admission control plugin NamespaceLifecycle is set", automated},
	{"1.2.14", "Ensure that the admission control plugin NodeRestriction is set", automated},
	{"1.2.15", "Ensure that the --profiling argument is set to false", automated},
	{"1.2.16", "Ensure that the --audit-log-path argument is set", automated},
	{"1.2.17", "Ensure that the --audit-log-maxage argument is set to 30 or as appropriate", automated},
	{"1.2.18", "Ensure that the --audit-log-maxbackup argument is set to 10 or as appropriate", automated},
	{"1.2.19", "Ensure that the --audit-log-maxsize argument is set to 100 or as appropriate", automated},
	{"1.2.20", "Ensure that the --request-timeout argument is set as appropriate", manual},
	{"1.2.21", "Ensure that the --service-account-lookup argument is set to true", automated},
	{"1.2.22", "Ensure that the --service-account-key-file argument is set as appropriate", automated},
	{"1.2.23", "Ensure that the --etcd-certfile and --etcd-keyfile arguments are set as appropriate", automated},
	{"1.2.24", "Ensure that the --tls-cert-file and --tls-private-key-file arguments " +
		"are set as appropriate", automated},
	{"1.2.25", "Ensure that the --client-ca-file argument is set as appropriate", automated},
	{"1.2.26", "Ensure that the --etcd-cafile argument is set as appropriate", automated},
	{"1.2.27", "Ensure that the --encryption-provider-config argument is set as appropriate", manual},
	{"1.2.28", "Ensure that encryption providers are appropriately configured", manual},
	{"1.2.29", "Ensure that the API Server only makes use of Strong Cryptographic Ciphers", manual},
	{"1.2.30", "Ensure that the --service-account-extend-token-expiration parameter is set to false", automated},
	{"1.3.1", "Ensure that the --terminated-pod-gc-threshold argument is set as appropriate", manual},
	{"1.3.2", "Ensure that the --profiling argument is set to false", automated},
	{"1.3.3", "Ensure that the --use-service-account-credentials argument is set to true", automated},
	{"1.3.4", "Ensure that the --service-account-private-key-file argument is set as appropriate", automated},
	{"1.3.5", "Ensure that the --root-ca-file argument is set as appropriate", automated},
	{"1.3.6", "Ensure that the RotateKubeletServerCertificate argument is set to true", automated},
	{"1.3.7", "Ensure that the --bind-address argument is set to 127.0.0.1", automated},
	{"1.4.1", "Ensure that the --profiling argument is set to false", automated},
	{"1.4.2", "Ensure that the --bind-address argument is set to 127.0.0.1", automated},
	{"2.1", "Ensure that the --cert-file and --key-file arguments are set as appropriate", automated},
	{"2.2", "Ensure that the --client-cert-auth argument is set to true", automated},
	{"2.3", "Ensure that the --auto-tls argument is not set to true", automated},
	{"2.4", "Ensure that the --peer-cert-file and --peer-key-file arguments are set as appropriate", automated},
	{"2.5", "Ensure that the --peer-client-cert-auth argument is set to true", automated},
	{"2.6", "Ensure that the --peer-auto-tls argument is not set to true", automated},
	{"2.7", "Ensure that a unique Certificate Authority is used for etcd", manual},
	{"3.1.1", "Client certificate authentication should not be used for users", manual},
	{"3.1.2", "Service account token authentication should not be used for users", manual},
	{"3.1.3", "Bootstrap token authentication should not be used for users", manual},
	{"3.2.1", "Ensure that a minimal audit policy is created", manual},
	{"3.2.2", "Ensure that the audit policy covers key security concerns", manual},
	{"4.1.1", "Ensure that the kubelet service file permissions are set to 600 or more restrictive", automated},
	{"4.1.2", "Ensure that the kubelet service file ownership is set to root:root", automated},
	{"4.1.3", "If proxy kubeconfig file exists ensure permissions are set to 600 or more restrictive", manual},
	{"4.1.4", "If proxy kubeconfig file exists ensure ownership is set to root:root", manual},
	{"4.1.5", "Ensure that the --kubeconfig kubelet.conf file permissions are set to " +
		"600 or more restrictive", automated},
	{"4.1.6", "Ensure that the --kubeconfig kubelet.conf file ownership is set to root:root", automated},
	{"4.1.7", "Ensure that the certificate authorities file permissions are set to 644 or more restrictive", manual},
	{"4.1.8", "Ensure that the client certificate authorities file ownership is set to root:root", manual},
	{"4.1.9", "If the kubelet config.yaml configuration file is being used validate " +
		"permissions set to 600 or more restrictive", automated},
	{"4.1.10", "If the kubelet config.yaml configuration file is being used validate " +
		"file ownership is set to root:root", automated},
	{"4.2.1", "Ensure that the --anonymous-auth argument is set to false", automated},
	{"4.2.2", "Ensure that the --authorization-mode argument is not set to AlwaysAllow", automated},
	{"4.2.3", "Ensure that the --client-ca-file argument is set as appropriate", automated},
	{"4.2.4", "Verify that if defined, the --read-only-port argument is set to 0", manual},
	{"4.2.5", "Ensure that the --streaming-connection-idle-timeout argument is not set to 0", manual},
	{"4.2.6", "Ensure that the --make-iptables-util-chains argument is set to true", automated},
	{"4.2.7", "Ensure that the --hostname-override argument is not set", manual},
	{"4.2.8", "Ensure that the eventRecordQPS argument is set to a level which " +
		"ensures appropriate event capture", manual},
	{"4.2.9", "Ensure that the --tls-cert-file and --tls-private-key-file arguments are set as appropriate", manual},
	{"4.2.10", "Ensure that the --rotate-certificates argument is not set to false", automated},
	{"4.2.11", "Verify that the RotateKubeletServerCertificate argument is set to true", manual},
	{"4.2.12", "Ensure that the Kubelet only makes use of Strong Cryptographic Ciphers", manual},
	{"4.2.13", "Ensure that a limit is set on pod PIDs", manual},
	{"4.2.14", "Ensure that the --seccomp-default parameter is set to true", manual},
	{"4.3.1", "Ensure that the kube-proxy metrics service is bound to localhost", automated},
	{"5.1.1", "Ensure that the cluster-admin role is only used where required", manual},
	{"5.1.2", "Minimize access to secrets", manual},
	{"5.1.3", "Minimize wildcard use in Roles and ClusterRoles", manual},
	{"5.1.4", "Minimize access to create pods", manual},
	{"5.1.5", "Ensure that default service accounts are not actively used", manual},
	{"5.1.6", "Ensure that Service Account Tokens are only mounted where necessary", manual},
	{"5.1.7", "Avoid use of system:masters group", manual},
	{"5.1.8", "Limit use of the Bind, Impersonate and Escalate permissions in the Kubernetes cluster", manual},
	{"5.1.9", "Minimize access to create persistent volumes", manual},
	{"5.1.10", "Minimize access to the proxy sub-resource of nodes", manual},
	{"5.1.11", "Minimize access to the approval sub-resource of certificatesigningrequests objects", manual},
	{"5.1.12", "Minimize access to webhook configuration objects", manual},
	{"5.1.13", "Minimize access to the service account token creation", manual},
	{"5.2.1", "Ensure that the cluster has at least one active policy control mechanism in place", manual},
	{"5.2.2", "Minimize the admission of privileged containers", manual},
	{"5.2.3", "Minimize the admission of containers wishing to share the host process ID namespace", manual},
	{"5.2.4", "Minimize the admission of containers wishing to share the host IPC namespace", manual},
	{"5.2.5", "Minimize the admission of containers wishing to share the host network namespace", manual},
	{"5.2.6", "Minimize the admission of containers with allowPrivilegeEscalation", manual},
	{"5.2.7", "Minimize the admission of root containers", manual},
	{"5.2.8", "Minimize the admission of containers with the NET_RAW capability", manual},
	{"5.2.9", "Minimize the admission of containers with capabilities assigned", manual},
	{"5.2.10", "Minimize the admission of Windows HostProcess containers", manual},
	{"5.2.11", "Minimize the admission of HostPath volumes", manual},
	{"5.2.12", "Minimize the admission of containers which use HostPorts", manual},
	{"5.3.1", "Ensure that the CNI in use supports NetworkPolicies", manual},
	{"5.3.2", "Ensure that all Namespaces have NetworkPolicies defined", manual},
	{"5.4.1", "Prefer using Secrets as files over Secrets as environment variables", manual},
	{"5.4.2", "Consider external secret storage", manual},
	{"5.5.1", "Configure Image Provenance using ImagePolicyWebhook admission controller", manual},
	{"5.6.1", "Create administrative boundaries between resources using namespaces", manual},
	{"5.6.2", "Ensure that the seccomp profile is set to docker/default in your Pod definitions", manual},
	{"5.6.3", "Apply SecurityContext to your Pods and Containers", manual},
	{"5.6.4", "The default namespace should not be used", manual},
}
