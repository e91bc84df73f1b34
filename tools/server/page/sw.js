// llama.cpp's own page leaves a service worker in the browser that would go on showing that page at this address. Its
// update check finds this one instead, which clears the shelves and leaves.
async function leave() {
    for (const name of await caches.keys()) {
        await caches.delete(name);
    }
    await self.registration.unregister();
    const pages = await self.clients.matchAll({ type: "window" });
    pages.forEach(page => page.navigate(page.url));
}

self.oninstall  = () => self.skipWaiting();
self.onactivate = event => event.waitUntil(leave());
