package informers

import (
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
)

// forGroup returns the arguments of client-go's generated code.
func (f *factory) forGroup() (internalinterfaces.SharedInformerFactory, string, internalinterfaces.TweakListOptionsFunc) {
	return generated{f}, f.namespace, f.tweak
}

// Admissionregistration implements [SharedInformerFactory].
func (f *factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f.forGroup())
}

// Internal implements [SharedInformerFactory].
func (f *factory) Internal() apiserverinternal.Interface {
	return apiserverinternal.New(f.forGroup())
}

// Apps implements [SharedInformerFactory].
func (f *factory) Apps() apps.Interface {
	return apps.New(f.forGroup())
}

// Autoscaling implements [SharedInformerFactory].
func (f *factory) Autoscaling() autoscaling.Interface {
	return autoscaling.New(f.forGroup())
}

// Batch implements [SharedInformerFactory].
func (f *factory) Batch() batch.Interface {
	return batch.New(f.forGroup())
}

// Certificates implements [SharedInformerFactory].
func (f *factory) Certificates() certificates.Interface {
	return certificates.New(f.forGroup())
}

// Coordination implements [SharedInformerFactory].
func (f *factory) Coordination() coordination.Interface {
	return coordination.New(f.forGroup())
}

// Core implements [SharedInformerFactory].
func (f *factory) Core() core.Interface {
	return core.New(f.forGroup())
}

// Discovery implements [SharedInformerFactory].
func (f *factory) Discovery() discovery.Interface {
	return discovery.New(f.forGroup())
}

// Events implements [SharedInformerFactory].
func (f *factory) Events() events.Interface {
	return events.New(f.forGroup())
}

// Extensions implements [SharedInformerFactory].
func (f *factory) Extensions() extensions.Interface {
	return extensions.New(f.forGroup())
}

// Flowcontrol implements [SharedInformerFactory].
func (f *factory) Flowcontrol() flowcontrol.Interface {
	return flowcontrol.New(f.forGroup())
}

// Lifecycle implements [SharedInformerFactory].
func (f *factory) Lifecycle() lifecycle.Interface {
	return lifecycle.New(f.forGroup())
}

// Networking implements [SharedInformerFactory].
func (f *factory) Networking() networking.Interface {
	return networking.New(f.forGroup())
}

// Node implements [SharedInformerFactory].
func (f *factory) Node() node.Interface {
	return node.New(f.forGroup())
}

// Policy implements [SharedInformerFactory].
func (f *factory) Policy() policy.Interface {
	return policy.New(f.forGroup())
}

// Rbac implements [SharedInformerFactory].
func (f *factory) Rbac() rbac.Interface {
	return rbac.New(f.forGroup())
}

// Resource implements [SharedInformerFactory].
func (f *factory) Resource() resource.Interface {
	return resource.New(f.forGroup())
}

// Scheduling implements [SharedInformerFactory].
func (f *factory) Scheduling() scheduling.Interface {
	return scheduling.New(f.forGroup())
}

// Storage implements [SharedInformerFactory].
func (f *factory) Storage() storage.Interface {
	return storage.New(f.forGroup())
}

// Storagemigration implements [SharedInformerFactory].
func (f *factory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f.forGroup())
}
